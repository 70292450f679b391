-- Takes a free lock and issues its fence, in one step (rule 9).
--
-- Needs  value.lua, issue.lua, may_vote.lua and acquire_any.lua behind it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence memory in ms; for a vote also  4 restart delay in s   5 the fence to issue if it is
--        large enough, or ""; and perhaps a witness of this server's uptime  6 run id   7 seconds
-- Reply  {1, fence}              granted
--        {0, PTTL in ms, value}  it is held; value is its first 256 bytes, {0, type} if that is not a string, and
--                                {0} if the type is not reported
--        {2, seconds}            not up for long enough to vote, and the seconds that are missing
--        and for a vote  time in µs, run id (or nil)  after each of them
--
-- Atomic because a lock whose floor is not above its fence would let two holders share a number; and because a server
-- must not restart between the check of its uptime and the grant.
-- Idempotent per token: a token that already holds the lock is granted it again, with the fence in its value (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
--
-- Usually the lock is free, and its floor is an earlier time. Defining a function takes as long as a call, so all
-- functions are behind this.
local lock, fence, token, ttl, memory, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3], ARGV[4]

-- The replies of GET for the floor, and of SET NX, once these were sent.
local time, stored, taken = redis.call('TIME'), nil, nil
if not delay and memory ~= '0' then
  -- Text throughout: a number would be printed and parsed again, which costs more than the calls.
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

