-- Takes a free lock and draws its fence, in one step (rule 9).
--
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms
-- Reply  {1, fence}                     granted
--        {0, PTTL in ms, value, fence}  somebody holds it; value is nil for another type than a string
--
-- Atomic because a lock without a fence, or a fence without a lock, would let two holders share a number.
-- Idempotent per token: who holds the lock already is granted it again with the same fence (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local stored = redis.call('GET', fence)
local floor = 0
if stored then
  floor = tonumber(stored)
end
-- From 2^53 on a Lua number skips integers, and the next fence would not be larger; NaN is no multiple of anything.
if not floor or floor < 0 or floor % 1 ~= 0 or floor >= 9007199254740992 then
  return redis.error_reply('ERR the fence key ' .. fence .. ' holds no fence: delete it to go on')
end

local function draw()
  local time = redis.call('TIME')
  -- Text all the way: a number would be printed and parsed again, which costs more than the call.
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  if tonumber(now) > floor then
    redis.call('SET', fence, now, 'PX', '86400000')
    return tonumber(now)
  end
  -- The clock stands behind what was drawn before: 24 h after the fence's own time (a number argument keeps its 16
  -- digits; tostring would not).
  redis.call('SET', fence, floor + 1, 'PXAT', math.floor((floor + 1) / 1000) + 86400000)
  return floor + 1
end

if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  return {1, draw()}
end

local value = redis.pcall('GET', lock)
if type(value) ~= 'string' then
  value = false
end
local pttl = redis.call('PTTL', lock)
if value == token then
  if pttl < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return {1, stored and floor or draw()}
end
return {0, pttl, value, stored}
