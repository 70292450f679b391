-- Takes a free lock without a fence: the first step of an acquire while its slot is being moved.
--
-- Needs  value.lua before it
-- KEYS   1 lock
-- ARGV   1 token  2 TTL in ms
-- Reply  1                       it is the token's
--        {0, PTTL in ms, value}  it is held; as in acquire.lua
--
-- Atomic because between the read and the write another client could take it. Idempotent per token. The fence 0 means
-- that there is none yet: the third step writes it.
local lock, token, ttl = KEYS[1], ARGV[1], ARGV[2]
if redis.call('SET', lock, with_fence(token, '0'), 'NX', 'PX', ttl) then
  return 1
end
local value, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.call('PTTL', lock)
local denied = denial(value, token)
if type(denied) == 'table' then
  return denied
elseif denied then
  return {0, pttl, type(value) == 'string' and value or {0, redis.pcall('TYPE', lock).ok}}
end
-- A replay writes too, because its reply counts as a write.
redis.call('PEXPIRE', lock, math.max(pttl, tonumber(ttl)))
return 1
