-- What one of many has found out, for all of them. ARGV[1]: {now, act, …}.

local asked = cmsgpack.unpack(ARGV[1])
local now, act = now_s(asked[1]), asked[2]

-- {…, who, fresh_s, turn_s}; KEYS: the finding, and whose turn it is to find out. Answers {found, how old, your turn}.
if act == 'look' then
  local known = redis.call('GET', KEYS[1])
  local text, age_s = '', -1
  if known then
    local at, found = unpack(cmsgpack.unpack(known))
    text, age_s = found, math.max(now - at, 0)
  end
  if known and age_s <= asked[4] then return cmsgpack.pack({text, age_s, false}) end
  local turn = redis.call('SET', KEYS[2], asked[3], 'NX', 'PX', math.ceil(asked[5] * 1000))
  return cmsgpack.pack({text, age_s, turn and true or false})
end

-- {…, text, keep_s}; the same KEYS: the finding, and the turn is over.
if act == 'post' then
  redis.call('SET', KEYS[1], cmsgpack.pack({now, asked[3]}), 'PX', math.ceil(asked[4] * 1000))
  redis.call('DEL', KEYS[2])
  return cmsgpack.pack({now})
end

-- {…, who, for_s}; KEYS: what is warned of.
if act == 'warn' then
  redis.call('SET', KEYS[1], asked[3], 'PX', math.ceil(asked[4] * 1000))
  return cmsgpack.pack({now})
end

-- {…, who}; KEYS: what may have been warned of. Answers for each whether somebody else did.
local told = {}
for number, by in ipairs(redis.call('MGET', unpack(KEYS))) do
  told[number] = by and by ~= asked[3] or false
end
return cmsgpack.pack(told)
