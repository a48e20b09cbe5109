-- Put before each of the other scripts. Rates are buckets of a hash, as in policies/windows.py; keys all have a TTL.
-- Money is spent and reserved; what is reserved, and slots, are leases: members of a sorted set by when they end.

local BUCKETS = 60
local GRAIN_S = 1e-6 -- more than what a Unix time in floating point may lose
local AFTER_S = 3600 -- how long a calendar window can still be settled when it is over
local FOREVER_S = 30 * 86400 -- and one that has no end, after its last use: the ledger knows it anyway

local RATE, SLOT, PURSE, ROLLING = 1, 2, 3, 4

local function now_s(given)
  if given then return given end
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1e6
end

local function expire(key, seconds)
  redis.call('PEXPIRE', key, math.ceil(seconds * 1000))
end

local function bucket(at, period)
  return math.floor(at / (period / BUCKETS))
end

local function gone_in(number, now, period)
  return (number + BUCKETS + 1) * (period / BUCKETS) - now + GRAIN_S
end

-- What counts in a window, and its oldest bucket.
local function counted(key, now, period)
  local state = redis.call('HMGET', key, 'total', 'oldest')
  local total, oldest = tonumber(state[1]) or 0, tonumber(state[2])
  local first = bucket(now, period) - BUCKETS
  if not oldest or oldest >= first then return total, oldest end
  local fields, rest = redis.call('HGETALL', key), nil
  for i = 1, #fields, 2 do
    local number = tonumber(fields[i])
    if number and number < first then
      redis.call('HDEL', key, fields[i])
      total = total - tonumber(fields[i + 1])
    elseif number and (not rest or number < rest) then
      rest = number
    end
  end
  redis.call('HSET', key, 'total', total, 'oldest', rest or first)
  return total, rest or first
end

-- Count something at an instant; what is given back is no more than was taken there.
local function add(key, at, now, period, cost)
  local number = bucket(at, period)
  if number < bucket(now, period) - BUCKETS then return end
  if cost < 0 then cost = math.max(cost, -(tonumber(redis.call('HGET', key, number)) or 0)) end
  if cost == 0 then return end
  redis.call('HINCRBY', key, number, cost)
  redis.call('HINCRBY', key, 'total', cost)
  local oldest = tonumber(redis.call('HGET', key, 'oldest'))
  if not oldest or number < oldest then redis.call('HSET', key, 'oldest', number) end
  expire(key, period + 2 * period / BUCKETS)
end

-- How long until there is room; a cost above the whole limit waits until nothing else counts.
local function room_in(key, now, period, limit, cost)
  local total = counted(key, now, period)
  local over = total + cost - limit
  if over <= 0 or total == 0 then return 0, total end
  local fields, numbers, amounts = redis.call('HGETALL', key), {}, {}
  for i = 1, #fields, 2 do
    local number = tonumber(fields[i])
    if number then
      numbers[#numbers + 1] = number
      amounts[number] = tonumber(fields[i + 1])
    end
  end
  table.sort(numbers)
  for _, number in ipairs(numbers) do
    over = over - amounts[number]
    if over <= 0 then return gone_in(number, now, period), total end
  end
  return gone_in(numbers[#numbers], now, period), total
end

-- What is reserved of a budget, without what a process left behind when it died.
local function reserved(key, leases, now)
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now)) do
    redis.call('ZREM', leases, member)
    redis.call('HINCRBY', key, 'reserved', -tonumber(string.match(member, '|(%d+)$')))
  end
  return tonumber(redis.call('HGET', key, 'reserved')) or 0
end

local function keep(kind, key, now, a, b)
  if kind == ROLLING then
    expire(key, a + 2 * a / BUCKETS)
  else
    expire(key, b > 0 and math.max(b - now, 0) + AFTER_S or FOREVER_S)
  end
end

local function lease(key, leases, hold, amount, now, lease_s)
  if amount == 0 then return end
  if redis.call('ZADD', leases, now + lease_s, hold .. '|' .. string.format('%.0f', amount)) == 1 then
    redis.call('HINCRBY', key, 'reserved', amount)
  end
  expire(leases, lease_s + 1)
end

local function release(key, leases, hold, amount)
  if redis.call('ZREM', leases, hold .. '|' .. string.format('%.0f', amount)) == 0 then return false end
  redis.call('HINCRBY', key, 'reserved', -amount)
  return true
end
