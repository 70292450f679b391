-- Takes a token out of the queue, and parts with the lock if it is that token's: what a waiter that gives up sends. A
-- lock that it finds free goes to the first of the queue too: the one who leaves may have been the one to look.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait
-- ARGV   1 token  2 channel of its process, whether or not it hears there  3 window in ms, as in a poll
--        and perhaps a witness of this server's uptime  4 run id   5 seconds
-- Reply  1 the lock is deleted or passed on, 0 the key is gone, -1 it holds something else
--
-- Atomic because a waiter may be granted the lock at the instant in which it gives up: then the next one gets it.
-- Idempotent: a replay finds the token nowhere. As in a release, the queue's keys can make nothing fail.
local token, process = ARGV[1], ARGV[2]
witness_run, witnessed = ARGV[4], ARGV[5]

redis.pcall('ZREM', queue, token)
local waiting = redis.pcall('ZCARD', queue)
if waiting == 0 then
  clear()
elseif type(waiting) == 'number' then
  redis.pcall('HDEL', wait, token)
  -- It has said something, so its other waiters may be granted the lock. As in a poll, the hash may be new.
  local time = redis.call('TIME')
  redis.pcall('HSET', wait, '!' .. process, string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[3] * 1000))
  redis.pcall('PEXPIRE', queue, 2 * ARGV[3])
  redis.pcall('PEXPIRE', wait, 2 * ARGV[3])
end

local denied = denial(redis.pcall('GET', lock), token)
if denied == 0 then
  pass_on()
end
return denied or pass_on()
