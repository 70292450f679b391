-- Deletes a lock that is still ours, even if waiters are queued: a release while its slot is being moved. Its queue may
-- be on another server, and the first waiter to poll gets the lock.
--
-- Needs  value.lua before it
-- KEYS   1 lock
-- ARGV   1 token or value
-- Reply  1 deleted, 0 the key is gone, -1 it holds something else, {-3, who took it by force}
--
-- Atomic because between the compare and the deletion the lock could change hands. Idempotent: a replay finds the key
-- gone, or with another holder, and leaves it alone.
local denied = denial(redis.pcall('GET', KEYS[1]), ARGV[1], KEYS[1])
if not denied or denied == 0 then
  -- The server may have become a replica that does not have the key yet. Only a write shows that.
  redis.call('DEL', KEYS[1])
end
return denied or 1
