-- Set aside one request at every rule, or nothing. ARGV[1]: {now, hold, lease_s, mode, had, rules}; mode is 'reserve',
-- 'extend' (`had` is reserved already), or 'look'; a rule is {kind, limit, cost, hard, seeded, a, b}: a is the period,
-- or a and b are the window. Answers {now, status, {{wait, used, reset}, …}}: a wait below 0 has no end. If the ledger has
-- to be asked first, `reset` is when a budget's counter was born that has not heard from it, and else 0.

local TAKEN, REFUSED, OTHER_WINDOW, UNSEEDED = 0, 1, 2, 3
local asked = cmsgpack.unpack(ARGV[1])
local now, hold, lease_s, mode, had, rules = now_s(asked[1]), asked[2], asked[3], asked[4], asked[5], asked[6]
local status, answers, at_key = TAKEN, {}, 1
local keys = {}

local function of_money(kind, key, leases, limit, cost, a, b)
  redis.call('HSETNX', key, 'born', now)
  keep(kind, key, now, a, b)
  local held = reserved(key, leases, now)
  if kind == PURSE then
    local used = (tonumber(redis.call('HGET', key, 'spent')) or 0) + held
    if used + cost <= limit then return 0, used end
    return (cost <= limit and b > 0) and b - now or -1, used
  end
  if cost > limit - held then return -1, held + counted(key, now, a) end
  local wait, spent = room_in(key, now, a, limit - held, cost)
  return wait, held + spent
end

for i, rule in ipairs(rules) do
  local kind, limit, cost, hard, seeded, a, b = unpack(rule)
  local key = KEYS[at_key]
  local wait, used, born = 0, 0, 0
  keys[i] = at_key
  at_key = at_key + (kind >= PURSE and 2 or 1)
  if kind == RATE then
    wait, used = room_in(key, now, a, limit, cost)
  elseif kind == SLOT then
    redis.call('ZREMRANGEBYSCORE', key, '-inf', now)
    used = redis.call('ZCARD', key)
    if used + cost > limit then wait = -1 end
  elseif kind == PURSE and mode ~= 'extend' and (now < a or (b > 0 and now >= b)) then
    return cmsgpack.pack({now, OTHER_WINDOW, {{0, 0, 0}}})
  elseif not (kind == PURSE and mode == 'extend' and b > 0 and now >= b) then
    wait, used = of_money(kind, key, KEYS[at_key - 1], limit, cost, a, b)
    if seeded and redis.call('HEXISTS', key, 'seeded') == 0 then
      status, born = UNSEEDED, tonumber(redis.call('HGET', key, 'born'))
    end
  end
  if wait ~= 0 and hard and status == TAKEN then status = REFUSED end
  answers[i] = {wait, used, born}
end

if mode == 'look' or status ~= TAKEN then return cmsgpack.pack({now, status, answers}) end

for i, rule in ipairs(rules) do
  local kind, _, cost, _, _, a, b = unpack(rule)
  local key, leases = KEYS[keys[i]], KEYS[keys[i] + 1]
  local reset = 0
  if kind == RATE then
    add(key, now, now, a, cost)
    reset = gone_in(bucket(now, a), now, a)
  elseif kind == SLOT then
    redis.call('ZADD', key, now + lease_s, hold)
    expire(key, lease_s + 1)
  else
    if had > 0 then release(key, leases, hold, had) end
    if kind == ROLLING or b == 0 or now < b then lease(key, leases, hold, had + cost, now, lease_s) end
    reset = kind == ROLLING and gone_in(bucket(now, a), now, a) or b - now
  end
  answers[i] = {answers[i][1], answers[i][2] + cost, reset}
end
return cmsgpack.pack({now, TAKEN, answers})
