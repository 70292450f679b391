-- Parts with a lock that is still ours, but leaves its key for a while.
--
-- KEYS   1 lock
-- ARGV   1 token   2 how long in ms   3 the value that stays, known to nobody else
-- Reply  1 kept, 0 the key is gone, -1 it holds something else
--
-- Atomic because between the compare and the write the lock could change hands. The value changes so that a renewal
-- that is still on its way finds another one, and cannot bring the TTL back. Idempotent: a replay finds what stays.
local value = redis.pcall('GET', KEYS[1])
if value == ARGV[1] then
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[2])
  return 1
elseif value == ARGV[3] then
  return 1
elseif value == false then
  return 0
elseif type(value) == 'string' or string.find(value.err, 'WRONGTYPE', 1, true) then
  return -1
end
return value
