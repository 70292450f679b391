-- Takes a token out of the queue, and parts with the lock if it is that token's: what a waiter that gives up sends. A
-- lock that it finds free goes to the first of the queue too: the one who leaves may have been the one to look.
--
-- Needs  value.lua, issue.lua, may_vote.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait
-- ARGV   1 token  2 channel of its process, whether or not it hears there
--        and perhaps a witness of this server's uptime  3 run id   4 seconds
-- Reply  1 the lock is deleted or passed on, 0 the key is gone, -1 it holds something else
--
-- Atomic because a waiter may be granted the lock at the instant in which it gives up: then the next one gets it.
-- Idempotent: a replay finds the token nowhere. As in a release, the queue's keys can make nothing fail.
local token, process = ARGV[1], ARGV[2]
witness_run, witnessed = ARGV[3], ARGV[4]

redis.pcall('ZREM', queue, token)
local is_empty = redis.pcall('ZCARD', queue) == 0
-- The process has said something, so its other waiters may be granted the lock. The memo goes with the last waiter.
redis.pcall('HDEL', wait, token, '!' .. process, is_empty and MEMO or token)

local denied = denial(redis.pcall('GET', lock), token)
if denied == 0 then
  pass_on()
end
return denied or pass_on()
