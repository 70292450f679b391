-- Turns a lock that we hold alone into one that we share, without a gap; waiters that fit are admitted.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua, phase.lua and promote.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 token that shares   2 TTL in ms   3 token or value that holds it alone   4 fence memory in ms   5 restart delay
--        in s; and perhaps a witness of this server's uptime  6 run id   7 seconds
-- Reply  {1, fence}, {0} it is gone, {-1} it holds something else, {-3, who took it by force}
--        {2, seconds}  not up for long enough, as in succeed.lua
--
-- Atomic because the lock must not be free in between. Idempotent: a replay finds the new token among the sharers.
local token, ttl = ARGV[1], tonumber(ARGV[2])
witness_run, witnessed = ARGV[6], ARGV[7]

local value, time = redis.pcall('GETRANGE', lock, 0, 255), redis.call('TIME')
if value == '' and redis.call('EXISTS', lock) == 0 then
  value = false
end
local phase, now_ms = phase_of(value), time[1] * 1000 + math.floor(time[2] / 1000)
if phase then
  if not is_in(token, now_ms) then
    return {-1}
  end
  stays(token, ttl, now_ms)
  return {1, phase}
end
local denied = denial(value, ARGV[3], lock)
if denied then
  if denied == 0 then
    -- The server may have become a replica that does not have the key yet. Only a write shows that.
    redis.call('DEL', lock)
  end
  return type(denied) == 'number' and {denied} or denied
end
local missing, refused = recovers_for(ARGV[5])
if refused then
  return refused
elseif missing > 0 then
  return {2, missing}
end
-- The floor may be forgotten, and the clock behind, so the fence in the value is a floor too.
local stored, own = redis.pcall('GET', fence), fence_of(value)
local is_number = type(stored) == 'string' and not string.find(stored, '%D')
-- A write that needs no memory: if there is none, the holder continues, and a server that allowed it allows the others.
redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
if own and (not stored or is_number and (#own > #stored or #own == #stored and own > stored)) then
  stored = own
end
local issued, now = issue(fence, stored, time)
if not issued then
  return now
end
local refusal = begins(token, ttl, now_ms, issued, floor_expires(issued, now, ARGV[4]))
if refusal then
  return refusal
end
if redis.pcall('EXISTS', queue) == 1 then
  promote('', now, issued, 1 + beyond_one(token))
end
return {1, issued}
