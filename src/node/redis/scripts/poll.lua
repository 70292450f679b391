-- Enters the queue of a lock, keeps a waiter's place there, takes the lock or a share of it when it is the waiter's
-- turn, and confirms a grant.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua, phase.lua and promote.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 token  2 TTL in ms  3 ticket of an earlier reply, or "0"  4 grant in ms: how long the lock may wait to be
--        confirmed  5 window in ms: how long a silent process counts as alive, and half of how long the queue outlives
--        its last poll or leave  6 channel of the token's process, after a "~" if it does not listen there
--        7 "1" to enter the queue, "0" to only look  8 restart delay in s  9 fence memory in ms
--        10 "0" to hold it alone, else the limit: to share it while others take fewer permits than that
--        and perhaps a witness of this server's uptime  11 run id  12 seconds
-- Reply  {1, fence}  the token holds the lock, or shares it, for its TTL; and the run id, if the uptime was read
--        {0, remaining in ms, value, ticket, rank, entered, sharers}  it waits. remaining is the PTTL, or -2 if the
--          lock is still free: poll again at once. Beside sharers it is the time until one of them expires if none
--          renews, or until all do for a waiter that wants it alone; and 0 if more waiters could be admitted. value is
--          its first 256 bytes, nil if the lock is free; {0, type} if it is not a string, {0} if the type is not
--          reported. ticket is decimal text, "0" if it only looked; rank is how many wait before it; entered is 1 if it
--          was missing from the queue or the hash before, else 0; sharers is how many share it
--        {2, seconds, run id (or nil), ticket, rank, entered}  the lock is free, but the server has not been up for
--          long enough to grant it, and the seconds that are missing: meanwhile it waits
--        or an error about a queue key that holds no queue, or a fence key that holds no fence
--
-- Atomic because between reading the queue and taking the lock another client could do the same.
-- Idempotent per token: it keeps its place and ticket, and a grant is confirmed with the fence of its value, or of its
-- phase (rule 5). A server that was started lately confirms it too: a waiter that still polls has not given up what is
-- there. (It may have been taken by force since, which the server forgot.) Everything that can be refused is read
-- before the first write, and that one is refused when memory is out.
local token, ttl, channel, enters, delay = ARGV[1], tonumber(ARGV[2]), ARGV[6], ARGV[7] == '1', ARGV[8]
local memory, limit = ARGV[9], tonumber(ARGV[10])
local process = process_of(channel)
witness_run, witnessed = ARGV[11], ARGV[12]

-- `wait` may contain MARKS marks of processes without a waiter before they are checked, SAMPLE fields at a time.
local MARKS, SAMPLE = 64, 16

local function misplaced(key, reply)
  if type(reply) == 'number' then
    return nil
  elseif string.find(reply.err, 'WRONGTYPE', 1, true) then
    local what = key == holders and 'key ' or 'queue key '
    return redis.error_reply('ERR the ' .. what .. key .. ' holds another type: delete it to go on')
  end
  return reply
end

local length, fields = redis.pcall('ZCARD', queue), redis.pcall('HLEN', wait)
local refusal = misplaced(queue, length) or misplaced(wait, fields)
if refusal then
  return refusal
end
-- `now` is the time, or an error reply.
local issued, now = issue(fence, redis.pcall('GET', fence), redis.call('TIME'))
if not issued then
  return now
end
local value = redis.pcall('GETRANGE', lock, 0, 255)
if value == '' and redis.call('EXISTS', lock) == 0 then
  value = false
end
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
local now_ms = millis(now)
-- -1: it is held alone.
local phase, count = phase_of(value), -1
if phase or limit > 0 and value == false then
  -- Also if it is free: a user that may not count the sharers could not release a share.
  count = permits(now_ms)
  refusal = misplaced(holders, count)
  if refusal then
    return refusal
  end
end
if value == false then
  count = 0
end
local recovers = 0
if count >= 0 then
  recovers, refusal = recovers_for(delay)
  if refusal then
    return refusal
  end
end
local open = count >= 0 and recovers <= 0
local function fits()
  return count == 0 or count > 0 and count < limit
end

-- Notes that the process is alive. The hash may have been deleted, and a mark alone would stay forever.
local function mark()
  redis.call('HSET', wait, '!' .. process, string.format('%.0f', now + ARGV[5] * 1000))
  redis.call('PEXPIRE', queue, 2 * ARGV[5])
  redis.call('PEXPIRE', wait, 2 * ARGV[5])
end

local function leave()
  if length == 0 and fields == 0 then
    return
  end
  redis.call('ZREM', queue, token)
  if redis.call('EXISTS', queue) == 0 then
    clear()
  else
    redis.call('HDEL', wait, token)
    mark()
  end
end

-- A waiter whose ticket the memo covers ends the memo, unless it is of the memo's process.
local function check_memo(ticket)
  local up_to, of = memo()
  if up_to and of ~= process and ticket <= tonumber(up_to) then
    redis.call('HDEL', wait, MEMO)
  end
end

-- Drops marks of processes that have ended: a killed one never removes its mark. A mark is kept for a window after it
-- expires, because a process that polls may have other waiters. A process that listens may be stopped: its mark stays,
-- and is checked once a window. A mark that is further ahead than any can be is from before the clock was set back.
local function drop_marks(window)
  local sample = redis.pcall('HRANDFIELD', wait, SAMPLE, 'WITHVALUES')
  for i = 1, #sample, 2 do
    local of, over = string.match(sample[i], '^!(.*)$'), now - (tonumber(sample[i + 1]) or 0)
    if of and math.abs(over) > window then
      local receivers = redis.pcall('PUBLISH', of, '')
      if type(receivers) == 'number' and receivers > 0 then
        redis.call('HSET', wait, sample[i], string.format('%.0f', over > 0 and now or now + window))
      else
        redis.call('HDEL', wait, sample[i])
      end
    end
  end
end

if phase and count > 0 and is_in(token, now_ms) then
  stays(token, ttl, now_ms)
  leave()
  return {1, phase}
elseif not phase and not denial(value, token) then
  -- A replay writes too, because its reply counts as a write.
  redis.call('PEXPIRE', lock, math.max(redis.call('PTTL', lock), ttl))
  leave()
  return {1, fence_of(value)}
end

-- If no waiter is ahead, there is no need to enter a queue only to leave it at once.
local entered, ahead, is_full, began = 0, length > 0, false, phase
if not (open and not ahead and fits()) then
  if enters then
    local ticket, alive_until = tonumber(ARGV[3]), string.format('%.0f', now + ARGV[5] * 1000)
    if ticket == 0 then
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
      -- A clock that went back does not put a waiter ahead of earlier ones.
      ticket = math.max(tonumber(now), (tonumber(last[2]) or 0) + 1)
    end
    entered = redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), token)
    if entered == 1 then
      check_memo(ticket)
    end
    -- The hash alone may have been lost, and the entries of this process's other waiters with it.
    local whose = limit > 0 and limit .. '*' .. channel or channel
    local entry = table.concat({ARGV[4], alive_until, delay, memory, whose}, '|')
    local missing = redis.call('HSET', wait, token, entry)
    entered = math.max(entered, missing)
    mark()
    if fields - 2 * length > MARKS then
      drop_marks(ARGV[5] * 1000)
    end
  end
  if open then
    -- The first one admitted begins a phase.
    began = count == 0 and issued or phase
    ahead, count, is_full = promote(token, now, issued, count)
  end
end

if open and not ahead and fits() then
  if limit > 0 and count > 0 then
    refusal = joins(token, ttl, now_ms)
  else
    began = issued
    local option, expires = floor_expires(issued, now, memory)
    if limit > 0 then
      refusal = begins(token, ttl, now_ms, issued, option, expires)
    else
      if option then
        redis.call('SET', fence, issued, option, expires)
      end
      redis.call('SET', lock, with_fence(token, issued), 'PX', ttl)
    end
  end
  if refusal then
    return refusal
  end
  leave()
  if limit > 0 and redis.call('EXISTS', queue) == 1 then
    -- Waiters behind it may fit as well.
    promote('', now, issued, count + 1 + beyond_one(token))
  end
  if length > 0 then
    calls_another(token)
  end
  return run_id and {1, began, run_id} or {1, began}
elseif open and count ~= 0 then
  value = redis.call('GETRANGE', lock, 0, 255)
end

local ticket, rank = '0', redis.call('ZCARD', queue)
if enters then
  -- If the clock is set back within this step, the queue expires at once: the next poll enters again.
  local score = redis.call('ZSCORE', queue, token)
  ticket, rank = score and string.format('%.0f', score) or '0', redis.call('ZRANK', queue, token) or 0
end
if recovers > 0 then
  return {2, recovers, run_id, ticket, rank, entered}
end
if type(value) == 'table' then
  value = {0, redis.pcall('TYPE', lock).ok}
end
local remaining, sharers = redis.call('PTTL', lock), count > 0 and redis.call('ZCOUNT', holders, now_ms, '+inf') or 0
if count == 0 then
  -- Of a phase, only the key is left.
  remaining, value = -2, false
elseif count > 0 and is_full then
  remaining = 0
elseif count > 0 then
  local at
  if limit == 0 then
    at = redis.call('ZRANGE', holders, -1, -1, 'WITHSCORES')[2]
  else
    at = redis.call('ZRANGEBYSCORE', holders, now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  remaining = math.max((tonumber(at) or now_ms) - now_ms, 0)
end
return {0, remaining, value, ticket, rank, entered, sharers}
