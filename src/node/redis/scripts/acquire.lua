-- Takes a free lock and issues its fence, in one step (rule 9).
--
-- Needs  value.lua, issue.lua and may_vote.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence memory in ms; for a vote also  4 restart delay in s   5 the fence to issue if it is
--        large enough, or ""; and perhaps a witness of this server's uptime  6 run id   7 seconds
-- Reply  {1, fence}              granted
--        {0, PTTL in ms, value}  somebody holds it; value is its first 256 bytes, {0, type} for another type than a string, and {0} if that
--                                is not told
--        {2, seconds}            up for too short a time to vote, and for how long that lasts
--        and for a vote  time in µs, run id (or nil)  after each of them
--
-- Atomic because a lock whose floor is not above its fence would let two holders share a number; and because a server must
-- not restart between the look at its uptime and the grant.
-- Idempotent per token: who holds the lock already is granted it again with the fence that its value has (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl, memory, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local time, reply, run_id, missing, refused = redis.call('TIME')
if delay then
  run_id, missing, refused = may_vote(delay, ARGV[6], ARGV[7])
  if refused then
    return refused
  elseif missing > 0 then
    reply = {2, missing}
  end
end

if not reply then
  -- The time, or an error reply.
  local issued, now = issue(fence, redis.pcall('GET', fence), time, ARGV[5])
  if not issued then
    return now
  end
  if redis.call('SET', lock, with_fence(token, issued), 'NX', 'PX', ttl) then
    local option, expires = floor_expires(issued, now, memory)
    if option then
      redis.call('SET', fence, issued, option, expires)
    end
    reply = {1, issued}
  else
    local value, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.call('PTTL', lock)
    local denied = denial(value, token)
    if type(denied) == 'table' then
      return denied
    elseif denied then
      reply = {0, pttl, type(value) == 'string' and value or {0, redis.pcall('TYPE', lock).ok}}
    else
      -- A replay writes too: what it answers counts for a write.
      redis.call('PEXPIRE', lock, math.max(pttl, tonumber(ttl)))
      reply = {1, fence_of(value)}
    end
  end
end

if delay then
  reply[#reply + 1] = time[1] .. string.sub('00000' .. time[2], -6)
  reply[#reply + 1] = run_id
end
return reply
