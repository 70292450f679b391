-- Puts one token in the place of another, with a fence of its own, in one step: an adoption (rule 13).
--
-- Needs  value.lua, issue.lua and may_vote.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence memory in ms   4 the fence to issue if it is large enough, or ""   5 restart delay
--        in s   6 n   then n tokens, any of which may have the lock; and perhaps a witness of this server's uptime
--        n + 7 run id   n + 8 seconds
-- Reply  {1, fence}              it is the token's
--        {0, PTTL in ms, value}  another holder has it; as in acquire.lua
--        {2, seconds}            not up for long enough, and the seconds that are missing: what this server has of the
--                                lock may be older than what it has forgotten
--        {3}                     it is free
--
-- Atomic because between the compare and the write the lock could change hands, and because the key must be there all
-- the time. Idempotent per token: a replay finds it, and returns its fence (rule 5). The key never lives for less than
-- before. The queue is not read, because no waiter is overtaken. Everything that can be refused is read before the
-- first write.
local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])

local value, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.call('PTTL', lock)
if value == '' and redis.call('EXISTS', lock) == 0 then
  -- The server may have become a replica that does not have the key yet. Only a write shows that.
  redis.call('DEL', lock)
  return {3}
end
if not denial(value, token) then
  -- A replay writes too, because its reply counts as a write.
  redis.call('PEXPIRE', lock, math.max(ttl, pttl))
  return {1, fence_of(value)}
end

local n = tonumber(ARGV[6])
if tonumber(ARGV[5]) > 0 then
  local _, missing, refused = may_vote(ARGV[5], ARGV[n + 7], ARGV[n + 8])
  if refused then
    return refused
  elseif missing > 0 then
    return {2, missing}
  end
end

local denied
for i = 7, n + 6 do
  denied = denial(value, ARGV[i])
  if not denied then
    break
  end
end
if type(denied) == 'table' then
  return denied
elseif denied then
  return {0, pttl, type(value) == 'string' and value or {0, redis.pcall('TYPE', lock).ok}}
end

-- The floor may be forgotten, and the clock behind, so the fence in the value is a floor too.
local stored, giver = redis.pcall('GET', fence), fence_of(value)
local is_number = type(stored) == 'string' and not string.find(stored, '%D')
if giver and (not stored or is_number and (#giver > #stored or #giver == #stored and giver > stored)) then
  stored = giver
end
local issued, now = issue(fence, stored, redis.call('TIME'), ARGV[4])
if not issued then
  return now
end
-- A write that needs no memory: a server without memory allows what comes after it.
redis.call('PEXPIRE', lock, math.max(ttl, pttl))
local option, expires = floor_expires(issued, now, ARGV[3])
if option then
  redis.call('SET', fence, issued, option, expires)
end
redis.call('SET', lock, with_fence(token, issued), 'PX', math.max(ttl, pttl))
return {1, issued}
