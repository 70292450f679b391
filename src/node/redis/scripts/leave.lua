-- Takes tokens out of the queue, and releases the lock if it is one of theirs, or their shares. A waiter that gives up
-- sends it, or many of one process together. Then the first of the queue may fit: the leaving waiter may have been the
-- one that was to check, or in its way.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua, phase.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 channel of their process, even if it does not listen  2 window in ms, as in a poll   3 n   then n tokens
--        and perhaps a witness of this server's uptime   n + 4 run id   n + 5 seconds
-- Reply  1 the lock is deleted or passed on, or a share given back; 0 no token has it, -1 the key holds something else
--
-- Atomic because a waiter may be granted the lock at the instant in which it gives up: then the next one gets it.
-- Idempotent: a replay finds none of the tokens. As in a release, the queue's keys cannot make it fail.
local process, n = ARGV[1], tonumber(ARGV[3])
local tokens = {unpack(ARGV, 4, n + 3)}
witness_run, witnessed = ARGV[n + 4], ARGV[n + 5]

local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
redis.pcall('ZREM', queue, unpack(tokens))
local time = redis.call('TIME')
local waiting = redis.pcall('ZCARD', queue)
if waiting == 0 then
  clear()
elseif type(waiting) == 'number' then
  redis.pcall('HDEL', wait, unpack(tokens))
  -- The process is alive, so its other waiters may be granted the lock. As in a poll, the hash may be new.
  redis.pcall('HSET', wait, '!' .. process, string.format('%.0f', time[1] * 1000000 + time[2] + ARGV[2] * 1000))
  redis.pcall('PEXPIRE', queue, 2 * ARGV[2])
  redis.pcall('PEXPIRE', wait, 2 * ARGV[2])
end

local value, result = redis.pcall('GET', lock)
if phase_of(value) then
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local is_sharer, before = false, 0
  for _, token in ipairs(tokens) do
    local until_then = tonumber(redis.pcall('ZSCORE', holders, token)) or 0
    is_sharer, before = is_sharer or until_then >= now_ms, math.max(before, until_then)
    removes(holders, token)
  end
  local count = permits(now_ms)
  -- A set of another type does not show who shares, so no waiter is admitted.
  if type(count) == 'number' then
    pass_on(count, ends_with_the_last(now_ms, before))
  end
  result = is_sharer and 1 or 0
else
  local denied
  for _, token in ipairs(tokens) do
    denied = denial(value, token)
    if not denied then
      break
    end
  end
  if denied == 0 then
    pass_on(0)
  end
  result = denied or pass_on(0)
end
calls_another(first)
return result
