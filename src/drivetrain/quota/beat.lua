-- Who counts here. ARGV[1]: {now, name, lease_s}; a lease of 0 says goodbye. Answers how many there are.

local asked = cmsgpack.unpack(ARGV[1])
local now, name, lease_s = now_s(asked[1]), asked[2], asked[3]
redis.call('ZADD', KEYS[1], now + lease_s, name)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if lease_s > 0 then expire(KEYS[1], lease_s + 1) end
return cmsgpack.pack({now, redis.call('ZCARD', KEYS[1])})
