-- Requests are over. ARGV[1]: {now, settled}, each of them {hold, at, first, rules}, and a rule {kind, reserved, spent,
-- ledger, a, b}; of a rate, `spent` is what has to be added to it. `first` is false if the same may have come before:
-- what has no lease any more is left to the ledger then. So is, with a ledger, what is older than the counter.

local asked = cmsgpack.unpack(ARGV[1])
local now, at_key = now_s(asked[1]), 1

local function of_money(kind, key, leases, hold, at, first, rule)
  local _, held, spent, ledger, a, b = unpack(rule)
  local leased = held > 0 and release(key, leases, hold, held)
  local born = tonumber(redis.call('HGET', key, 'born'))
  if not born then
    if kind == PURSE and b > 0 and now >= b then return end
    born = now
    redis.call('HSET', key, 'born', now)
  end
  if spent > 0 and (leased or first) and (not ledger or at >= born) then
    if kind == PURSE then redis.call('HINCRBY', key, 'spent', spent) else add(key, at, now, a, spent) end
  end
  keep(kind, key, now, a, b)
end

for _, settled in ipairs(asked[2]) do
  local hold, at, first, rules = unpack(settled)
  for _, rule in ipairs(rules) do
    local kind, key = rule[1], KEYS[at_key]
    at_key = at_key + (kind >= PURSE and 2 or 1)
    if kind == RATE then
      if first then
        counted(key, now, rule[5])
        add(key, at, now, rule[5], rule[3])
      end
    elseif kind == SLOT then
      redis.call('ZREM', key, hold)
    else
      of_money(kind, key, KEYS[at_key - 1], hold, at, first, rule)
    end
  end
end
return cmsgpack.pack({now})
