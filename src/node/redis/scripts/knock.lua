-- Enters the queue of a lock, says that one still waits, takes the lock when it is one's turn, and confirms a grant.
--
-- Needs  draw.lua, may_vote.lua and promote.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait
-- ARGV   1 token  2 TTL in ms  3 ticket of an earlier reply, or "0"  4 grant in ms: how long the lock may wait for the
--        token's confirmation  5 window in ms: how long a waiter without a channel counts as alive, and half of what
--        the queue outlives its last knock by  6 channel on which the token's process listens, or ""
--        7 "1" to enter the queue, "0" to only look  8 restart delay in s
-- Reply  {1, fence}  the lock is the token's, for its TTL
--        {0, PTTL in ms, value, fence, ticket, rank, entered}  it waits. PTTL is -2 if the lock is still free: knock
--          again at once. value is nil for another type than a string; ticket is decimal text, "0" if it only looked;
--          rank is how many wait before it; entered is 1 if it was not in the queue and the hash before, else 0
--        {2, seconds, ticket, rank, entered}  the lock is free, but the server up for too short a time to grant it, and
--          for how long that lasts: meanwhile it waits
--        or an error about a queue key that holds no queue, or a fence key that holds no fence
--
-- Atomic because between the look at the queue and the taking of the lock somebody else could do the same.
-- Idempotent per token: it keeps its place and ticket, and a grant is confirmed with the fence drawn for it (rule 5). A
-- server that was started lately confirms it too: who still knocks has not let go of what is there.
-- Everything that can be refused is read before the first write, and that one is refused when memory is out.
local token, ttl, channel, enters, delay = ARGV[1], ARGV[2], ARGV[6], ARGV[7] == '1', ARGV[8]

local function misplaced(key, reply)
  if type(reply) == 'number' then
    return nil
  elseif string.find(reply.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('ERR the queue key ' .. key .. ' holds another type: delete it to go on')
  end
  return reply
end

local length = redis.pcall('ZCARD', queue)
local refusal = misplaced(queue, length) or misplaced(wait, redis.pcall('HLEN', wait))
if refusal then
  return refusal
end
local stored, time = redis.pcall('GET', fence), redis.call('TIME')
local drawn, option, expires = draw(fence, stored, time)
if not drawn then
  return option
end
local value = redis.pcall('GET', lock)
if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
local recovers = 0
if value == false then
  recovers, refusal = recovers_for(delay)
  if refusal then
    return refusal
  end
end
local free = value == false and recovers <= 0

local function leave()
  redis.call('ZREM', queue, token)
  redis.call('HDEL', wait, token, '!' .. channel)
end

if value == token then
  if redis.call('PTTL', lock) < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  leave()
  if not stored then
    redis.call('SET', fence, drawn, option, expires)
  end
  return {1, stored or drawn}
end

local now = time[1] * 1000000 + time[2]
-- Nobody is before us: no need to enter what would be left at once.
local entered, outcome = 0, free and length == 0 and 'nobody' or nil
if not outcome then
  if enters then
    local ticket, alive_until = tonumber(ARGV[3]), string.format('%.0f', now + ARGV[5] * 1000)
    if ticket == 0 then
      local last = redis.call('ZRANGE', queue, -1, -1, 'WITHSCORES')
      -- A clock that went back puts nobody before those who came first.
      ticket = math.max(now, (tonumber(last[2]) or 0) + 1)
    end
    entered = redis.call('ZADD', queue, 'NX', string.format('%.0f', ticket), token)
    redis.call('HDEL', wait, '!' .. channel)
    -- The hash alone may have been lost, and the entries of this process's other waiters with it.
    local missing = redis.call('HSET', wait, token, ARGV[4] .. '|' .. alive_until .. '|' .. delay .. '|' .. channel)
    entered = math.max(entered, missing)
    redis.call('PEXPIRE', queue, 2 * ARGV[5])
    redis.call('PEXPIRE', wait, 2 * ARGV[5])
  end
  if free then
    outcome = promote(token, now, drawn, option, expires)
  end
end

if outcome == 'me' or outcome == 'nobody' then
  redis.call('SET', fence, drawn, option, expires)
  redis.call('SET', lock, token, 'PX', ttl)
  leave()
  return {1, drawn}
elseif outcome == 'granted' then
  value, stored = redis.call('GET', lock), drawn
end

local ticket, rank = '0', redis.call('ZCARD', queue)
if enters then
  ticket = string.format('%.0f', redis.call('ZSCORE', queue, token))
  rank = redis.call('ZRANK', queue, token)
end
if recovers > 0 then
  return {2, recovers, ticket, rank, entered}
end
if type(value) ~= 'string' then
  value = false
end
return {0, redis.call('PTTL', lock), value, stored, ticket, rank, entered}
