-- Brings a lock back to a server that has lost it, while a majority of the others still holds it (safety rule 7).
--
-- Needs  value.lua, issue.lua, may_vote.lua and floor.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms   3 fence   4 fence memory in ms   5 restart delay in s
--        and perhaps a witness of this server's uptime  6 run id   7 seconds
-- Reply  {1} it is there, {-1} another holder has it, {2, seconds, run id (or nil)} not up for long enough, and the
--        seconds missing
--
-- Atomic because a server must not restart between the check of its uptime and the write: this may arrive late.
-- Idempotent: a replay finds its own key, and extends it. The floor comes first, because it can be refused.
local lock, token, to = KEYS[1], ARGV[1], ARGV[3]

local run_id, missing, refused = may_vote(ARGV[5], ARGV[6], ARGV[7])
if refused then
  return refused
end
if missing > 0 then
  return {2, missing, run_id}
end
local value = redis.pcall('GET', lock)
local denied = denial(value, token)
if denied == -1 then
  return {-1}
elseif denied and denied ~= 0 then
  return denied
end
refused = raise_floor(KEYS[2], to, ARGV[4])
if refused then
  return refused
end
redis.call('SET', lock, raised(value or token, to), 'PX', ARGV[2])
return {1}
