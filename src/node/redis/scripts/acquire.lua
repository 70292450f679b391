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
local time = redis.call('TIME')
-- Text all the way: a number would be printed and parsed again, which costs more than the calls. The fence's own 24 h
-- are 24 h from now, when it is the time.
local drawn = time[1] .. string.sub('00000' .. time[2], -6)
local option, expires = 'PX', '86400000'

if stored and not (#stored == #drawn and stored < drawn and not string.find(stored, '%D')) then
  -- Something else than an earlier time. From 2^53 on a Lua number skips integers, and the next fence would not be
  -- larger; NaN is no multiple of anything.
  local floor = tonumber(stored)
  if not floor or floor < 0 or floor % 1 ~= 0 or floor >= 9007199254740992 then
    return redis.error_reply('ERR the fence key ' .. fence .. ' holds no fence: delete it to go on')
  end
  if floor >= tonumber(drawn) then
    -- The clock stands behind what was drawn before. tostring would print 14 digits.
    drawn = string.format('%.0f', floor + 1)
    option, expires = 'PXAT', string.format('%.0f', math.floor((floor + 1) / 1000) + 86400000)
  end
end

if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  redis.call('SET', fence, drawn, option, expires)
  return {1, drawn}
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
  if not stored then
    redis.call('SET', fence, drawn, option, expires)
  end
  return {1, stored or drawn}
end
return {0, pttl, value, stored}
