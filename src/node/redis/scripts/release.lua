-- Parts with a lock that is still ours (rule 8): to the first of its queue, or to nobody.
--
-- Needs  value.lua, issue.lua, may_vote.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait
-- ARGV   1 token or value; and perhaps a witness of this server's uptime  2 run id   3 seconds
-- Reply  1 deleted or passed on, 0 the key is gone, -1 it holds something else
--
-- Atomic because between the compare and the deletion the lock could change hands, and so that it is never free while
-- somebody is queued. Idempotent: a replay finds the key gone, or somebody else's, and leaves it alone.
witness_run, witnessed = ARGV[2], ARGV[3]

return denial(redis.pcall('GET', lock), ARGV[1]) or pass_on()
