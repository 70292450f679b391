-- Deletes a lock that is still ours (rule 8).
--
-- KEYS   1 lock
-- ARGV   1 token
-- Reply  1 deleted, 0 the key is gone, -1 it holds something else
--
-- Atomic because between the compare and the deletion the lock could change hands. Idempotent: a replay finds the key
-- gone, or somebody else's, and leaves it alone.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  return redis.call('DEL', KEYS[1])
elseif value == false then
  return 0
elseif type(value) == 'string' or string.find(value.err, 'WRONGTYPE', 1, true) then
  return -1
end
return value
