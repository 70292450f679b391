-- Brings a lock back to a server that has lost it, while a majority of the others still holds it (safety rule 7).
--
-- Needs  may_vote.lua and floor.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence   4 restart delay in s
--        and perhaps a witness of this server's uptime  5 run id   6 seconds
-- Reply  {1} it is there, {-1} somebody else has it, {2, seconds, run id (or nil)} up for too short a time, and for how
--          long that lasts
--
-- Atomic because a server must not restart between the look at its uptime and the write: this may arrive late.
-- Idempotent: a replay finds its own key, and extends it. The floor first, for it can be refused.
local lock, fence, token, ttl, delay = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[4]

local run_id, missing, refused = may_vote(delay, ARGV[5], ARGV[6])
if refused then
  return refused
end
if missing > 0 then
  return {2, missing, run_id}
end
local value = redis.pcall('GET', lock)
if value ~= false and value ~= token then
  if type(value) == 'string' or string.find(value.err, 'WRONGTYPE', 1, true) then
    return {-1}
  end
  return value
end
refused = raise_floor(fence, ARGV[3])
if refused then
  return refused
end
redis.call('SET', lock, token, 'PX', ttl)
return {1}
