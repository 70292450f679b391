-- Takes a free lock and issues its fence, in one step (rule 9).
--
-- Needs  issue.lua and may_vote.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms; for a vote also  3 restart delay in s   4 the fence to issue if it is large enough, or ""
--        and perhaps a witness of this server's uptime  5 run id   6 seconds
-- Reply  {1, fence}                     granted
--        {0, PTTL in ms, value, fence}  somebody holds it; value is nil for another type than a string
--        {2, seconds}                   up for too short a time to vote, and for how long that lasts
--        and for a vote  time in µs, run id (or nil)  after each of them
--
-- Atomic because a lock without a fence, or a fence without a lock, would let two holders share a number; and because a
-- server must not restart between the look at its uptime and the grant.
-- Idempotent per token: who holds the lock already is granted it again with the same fence (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]

local time = redis.call('TIME')
local function answer(reply)
  return reply
end
if delay then
  local run_id, missing, refused = may_vote(delay, ARGV[5], ARGV[6])
  if refused then
    return refused
  end
  function answer(reply)
    reply[#reply + 1] = time[1] .. string.sub('00000' .. time[2], -6)
    reply[#reply + 1] = run_id
    return reply
  end
  if missing > 0 then
    return answer({2, missing})
  end
end

local stored = redis.pcall('GET', fence)
local issued, option, expires = issue(fence, stored, time, ARGV[4])
if not issued then
  return option
end

if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  redis.call('SET', fence, issued, option, expires)
  return answer({1, issued})
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
    redis.call('SET', fence, issued, option, expires)
  end
  return answer({1, stored or issued})
end
return answer({0, pttl, value, stored})
