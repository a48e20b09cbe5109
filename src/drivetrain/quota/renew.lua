-- What is still held, also if its lease has ended or the server has forgotten it. ARGV[1]: {now, lease_s, rules}; a rule
-- is {kind, a, b, {{hold, amount}, …}}.

local asked = cmsgpack.unpack(ARGV[1])
local now, lease_s, at_key = now_s(asked[1]), asked[2], 1

for _, rule in ipairs(asked[3]) do
  local kind, a, b, holds = unpack(rule)
  local key = KEYS[at_key]
  at_key = at_key + (kind >= PURSE and 2 or 1)
  if kind == SLOT then
    for _, hold in ipairs(holds) do redis.call('ZADD', key, now + lease_s, hold[1]) end
    expire(key, lease_s + 1)
  elseif not (kind == PURSE and b > 0 and now >= b) then
    redis.call('HSETNX', key, 'born', now)
    reserved(key, KEYS[at_key - 1], now)
    for _, hold in ipairs(holds) do lease(key, KEYS[at_key - 1], hold[1], hold[2], now, lease_s) end
    keep(kind, key, now, a, b)
  end
end
return cmsgpack.pack({now})
