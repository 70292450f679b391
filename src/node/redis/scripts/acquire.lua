-- Takes a free lock and issues its fence, in one step (rule 9).
--
-- Needs  value.lua, issue.lua, may_vote.lua and acquire_any.lua behind it
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
--
-- Mostly nobody holds the lock, and its floor is an earlier time. To define a function takes as long as a call: all functions
-- stand behind this.
local lock, fence, token, ttl, memory, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- What GET answered of the floor, and what SET NX answered, once they were asked.
local time, stored, taken = redis.call('TIME'), nil, nil
if not delay and memory ~= '0' then
  -- Text all the way: a number would be printed and parsed again, which costs more than the calls.
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  stored = redis.pcall('GET', fence)
  if not stored or #stored == #now and stored < now and not string.find(stored, '%D') then
    local value = string.sub(token, 1, 40) .. ':' .. now .. string.sub(token, 41)
    taken = redis.call('SET', lock, value, 'NX', 'PX', ttl)
    if taken then
      redis.call('SET', fence, now, 'PX', memory)
      return {1, now}
    end
  end
end

