-- Takes a free lock and draws its fence, in one step (rule 9).
--
-- Needs  draw.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms
-- Reply  {1, fence}                     granted
--        {0, PTTL in ms, value, fence}  somebody holds it; value is nil for another type than a string
--
-- Atomic because a lock without a fence, or a fence without a lock, would let two holders share a number.
-- Idempotent per token: who holds the lock already is granted it again with the same fence (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local stored = redis.pcall('GET', fence)
local drawn, option, expires = draw(fence, stored, redis.call('TIME'))
if not drawn then
  return option
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
