-- The second phase of a quorum's fence: raises the floor under a lock that is still ours (rule 10).
--
-- Needs  floor.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 fence
-- Reply  1 raised, 0 the key is gone, -1 it holds something else
--
-- Atomic because the floor counts only if the lock was ours when it was raised: whoever has it next is issued more.
-- Idempotent: a replay finds the floor raised.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  return raise_floor(KEYS[2], ARGV[2]) or 1
elseif value == false then
  return 0
elseif type(value) == 'string' or string.find(value.err, 'WRONGTYPE', 1, true) then
  return -1
end
return value
