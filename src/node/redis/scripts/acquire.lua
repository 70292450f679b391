-- Takes a free lock and issues its fence, in one step (rule 9).
--
-- Needs  value.lua, issue.lua and may_vote.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence memory in ms; for a vote also  4 restart delay in s   5 the fence to issue if it is
--        large enough, or ""; and perhaps a witness of this server's uptime  6 run id   7 seconds
-- Reply  {1, fence}              granted
--        {0, PTTL in ms, value}  somebody holds it; value is nil for another type than a string
--        {2, seconds}            up for too short a time to vote, and for how long that lasts
--        and for a vote  time in µs, run id (or nil)  after each of them
--
-- Atomic because a lock whose floor is not above its fence would let two holders share a number; and because a server must
-- not restart between the look at its uptime and the grant.
-- Idempotent per token: who holds the lock already is granted it again with the fence that its value has (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl, memory, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local now = micros(redis.call('TIME'))
local function answer(reply)
  return reply
end
if delay then
  local run_id, missing, refused = may_vote(delay, ARGV[6], ARGV[7])
  if refused then
    return refused
  end
  function answer(reply)
    reply[#reply + 1] = now
    reply[#reply + 1] = run_id
    return reply
  end
  if missing > 0 then
    return answer({2, missing})
  end
end

local issued, refused = issue(fence, redis.pcall('GET', fence), now, ARGV[5])
if not issued then
  return refused
end

if redis.call('SET', lock, with_fence(token, issued), 'NX', 'PX', ttl) then
  local option, expires = floor_expires(issued, now, memory)
  if option then
    redis.call('SET', fence, issued, option, expires)
  end
  return answer({1, issued})
end

local value, pttl = redis.pcall('GET', lock), redis.call('PTTL', lock)
if type(value) ~= 'string' then
  value = false
elseif is_of(value, token) then
  if pttl < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return answer({1, fence_of(value)})
end
return answer({0, pttl, value})
