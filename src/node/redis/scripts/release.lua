-- Releases a lock that is still ours (rule 8): to the first of its queue, or it becomes free.
--
-- Needs  behind it keys.lua, value.lua, release_by_identity.lua, issue.lua, may_vote.lua, permits.lua, phase.lua,
--        promote.lua, pass_on.lua and release_to_queue.lua
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 token or value; and perhaps a witness of this server's uptime  2 run id   3 seconds
-- Reply  1 deleted or passed on, 0 the key is gone, -1 it holds something else, {-3, who took it by force}
--
-- Atomic because between the compare and the deletion the lock could change hands, and so that it is never free while a
-- waiter is queued. Idempotent: a replay finds the key gone, or with another holder, and leaves it alone.
--
-- Usually the caller knows the whole value, and no waiter is queued. Defining a function takes as long as a call, so
-- all functions are behind this.
local found, known = redis.pcall('GET', KEYS[1]), ARGV[1]
local has_queue = redis.pcall('ZCARD', KEYS[3]) ~= 0
if found == known and not has_queue then
  return redis.call('DEL', KEYS[1])
end

