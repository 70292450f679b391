-- Gives a lock that is still ours its fence and its full TTL: the third step of an acquire while its slot is being moved.
--
-- Needs  value.lua before it
-- KEYS   1 lock
-- ARGV   1 token  2 fence  3 TTL in ms
-- Reply  1 done, 0 the key is gone, -1 it holds something else
--
-- Atomic because between the compare and the write the lock could change hands. Idempotent.
local denied = denial(redis.pcall('GET', KEYS[1]), ARGV[1])
if not denied then
  redis.call('SET', KEYS[1], with_fence(ARGV[1], ARGV[2]), 'PX', ARGV[3])
end
return denied or 1
