-- Part of a script: gives a lock to the first of its queue.
--
-- Needs  draw.lua before it
-- KEYS   1 lock   2 fence   3 queue, a sorted set: token -> ticket
--        4 wait, a hash: token -> "grant in ms|alive until, in µs|channel", and "!" .. channel -> token for a grant
--          to that process since which it has not said anything
--
-- promote(me, now, drawn, option, expires) is for a lock that is free or about to be. `now` is the time in µs, the
-- rest what draw answered. It gives
--   'me'       the head of the queue is `me`, and nothing is granted
--   'nobody'   there is nobody to grant to, or no right to do it
--   'granted'  the lock is the old head's for its grant, with a fence, and it was told; the next one was told too
--   'full'     so many could not be reached that the rest is for another call
-- Who cannot be reached loses its place, and has it back when it knocks with its ticket. Of a process that is stopped,
-- and so still counts as a receiver, only the first waiter is given a grant: its mark keeps the others from it.
-- Nothing here raises an error, since a release must not fail for its queue's sake. The first write is one that
-- `maxmemory` does not refuse, and a server that has allowed the first write of a script allows the others.
local lock, fence, queue, wait = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

local function promote(me, now, drawn, option, expires)
  local silent, granted = {}, nil

  local function reaches(alive_until, channel, message)
    if channel == '' then
      return tonumber(alive_until) > now
    end
    -- A killed process costs one message, however many of its waiters there are.
    if silent[channel] == nil then
      silent[channel] = redis.pcall('HEXISTS', wait, '!' .. channel) == 1
    end
    if not silent[channel] then
      -- An error, such as no right to the channel, says nothing about the process, which polls too.
      silent[channel] = redis.pcall('PUBLISH', channel, message) == 0
    end
    return not silent[channel]
  end

  for _ = 1, 1000 do
    -- An error has no first element either.
    local head = redis.pcall('ZRANGE', queue, 0, 0)[1]
    if not head or head == me then
      return granted and 'granted' or head and 'me' or 'nobody'
    end
    if not granted and redis.pcall('ZREM', queue, head) ~= 1 then
      return 'nobody'
    end
    local entry = redis.pcall('HGET', wait, head)
    local grant, alive_until, channel
    if type(entry) == 'string' then
      grant, alive_until, channel = string.match(entry, '^(%d+)|(%d+)|(.*)$')
    end
    local message = granted and 'next ' .. granted .. ' ' .. head or 'granted ' .. #head .. ' ' .. head .. lock
    local reached = grant and reaches(alive_until, channel, message)
    if granted then
      if reached then
        return 'granted'
      end
      redis.pcall('ZREM', queue, head)
    elseif reached then
      -- The fence first: without a lock it is a gap, and a lock without it would be given the last holder's.
      if redis.pcall('SET', fence, drawn, option, expires).err or redis.pcall('SET', lock, head, 'PX', grant).err then
        return 'nobody'
      end
      granted = grant
      if channel ~= '' then
        -- Before the entry goes: a hash that was empty in between would have lost its expiry.
        redis.pcall('HSET', wait, '!' .. channel, head)
      end
    end
    redis.pcall('HDEL', wait, head)
  end
  return granted and 'granted' or 'full'
end

