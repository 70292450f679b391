-- Deletes a lock whoever holds it, unless it is no lock at all.
--
-- KEYS   1 lock
-- Reply  1 deleted, 0 there was none, or a WRONGTYPE error
--
-- Atomic because between the look at the type and the deletion the key could become somebody's data. Idempotent.
if redis.call('GET', KEYS[1]) then
  return redis.call('DEL', KEYS[1])
end
return 0
