-- What the ledger knows of budgets. ARGV[1]: {now, rules}; a rule is {kind, a, b, added, parts}, and a part {at, amount}.
-- `added`: what was spent before the counter was born, once. Else: no less than this was spent in all, which a counter
-- that still misses the first cannot be told: it would be counted again with it.

local asked = cmsgpack.unpack(ARGV[1])
local now = now_s(asked[1])

for i, rule in ipairs(asked[2]) do
  local kind, a, b, added, parts = unpack(rule)
  local key = KEYS[i]
  local seeded = redis.call('HEXISTS', key, 'seeded') == 1
  if added ~= seeded then
    if added then
      redis.call('HSETNX', key, 'born', now)
      redis.call('HSET', key, 'seeded', 1)
    end
    for _, part in ipairs(parts) do
      if kind == PURSE then
        local spent = tonumber(redis.call('HGET', key, 'spent')) or 0
        redis.call('HSET', key, 'spent', added and spent + part[2] or math.max(spent, part[2]))
      else
        counted(key, now, a)
        local spent = tonumber(redis.call('HGET', key, bucket(part[1], a))) or 0
        add(key, part[1], now, a, added and part[2] or math.max(part[2] - spent, 0))
      end
    end
    keep(kind, key, now, a, b)
  end
end
return cmsgpack.pack({now})
