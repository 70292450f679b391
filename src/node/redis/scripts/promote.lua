-- Part of a script: gives a lock to the first of its queue.
--
-- Needs  draw.lua and may_vote.lua before it
-- KEYS   1 lock   2 fence   3 queue, a sorted set: token -> ticket
--        4 wait, a hash: token -> "grant in ms|alive until, in µs|restart delay in s|channel", and "!" .. channel ->
--          token for a grant to that process since which it has not said anything
--
-- promote(me, now, drawn, option, expires) is for a lock that is free or about to be. `now` is the time in µs, the
-- rest what draw answered. It gives
--   'me'       the head of the queue is `me`, and nothing is granted
--   'nobody'   there is nobody to grant to, or not yet, or no right to do it
--   'granted'  the lock is the old head's for its grant, with a fence, and it was called; so was who comes next
--   'full'     so many could not be reached that the rest is for another call
-- Who cannot be reached loses its place, and has it back when it knocks with its ticket. Of a process that is stopped,
-- and so still counts as a receiver, only the first waiter is given a grant: its mark keeps the others from it.
-- Nothing here raises an error, since a release must not fail for its queue's sake. The first write is one that
-- `maxmemory` does not refuse, and a server that has allowed the first write of a script allows the others.
--
-- Calls are "granted <length of the token> <token><lock>" and "next <ms> <token>": look after so long, for who was
-- granted the lock may be stopped. The next in line hears the latter, and if that one is of the same process, so does
-- the next of another.
local lock, fence, queue, wait = KEYS[1], KEYS[2], KEYS[3], KEYS[4]

-- recovers_for(delay) gives the seconds for which this server, which may have forgotten a lease, is to grant nothing to
-- who has asked for this restart delay (0 or less: it may), or nil and an error reply. One look at the uptime is enough
-- for a script, and without a delay there is none.
local recovery = {['0'] = 0}
local function recovers_for(delay)
  if not recovery[delay] then
    local _, missing, refused = may_vote(delay)
    if refused then
      return nil, refused
    end
    recovery[delay] = missing
  end
  return recovery[delay]
end

local function promote(me, now, drawn, option, expires)
  local silent = {}

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

  local function entry(token)
    local text = redis.pcall('HGET', wait, token)
    if type(text) == 'string' then
      return string.match(text, '^(%d+)|(%d+)|(%d+)|(.*)$')
    end
  end

  local function tell_next(grant, granted_to)
    local told_it = false
    for _, token in ipairs(redis.pcall('ZRANGE', queue, 0, 31)) do
      if token == me then
        return
      end
      local known, alive_until, _, channel = entry(token)
      local same = known and channel ~= '' and channel == granted_to
      if not (same and told_it) then
        if not known or not reaches(alive_until, channel, 'next ' .. grant .. ' ' .. token) then
          redis.pcall('ZREM', queue, token)
          redis.pcall('HDEL', wait, token)
        elseif not same then
          return
        else
          told_it = true
        end
      end
    end
  end

  for _ = 1, 1000 do
    -- An error has no first element either.
    local head = redis.pcall('ZRANGE', queue, 0, 0)[1]
    if not head or head == me then
      return head and 'me' or 'nobody'
    end
    local grant, alive_until, delay, channel = entry(head)
    -- Not even what is being released here: the release may be the replay of one that this server has forgotten, with
    -- the grant that came after it.
    if grant and (recovers_for(delay) or 1) > 0 then
      return 'nobody'
    end
    if redis.pcall('ZREM', queue, head) ~= 1 then
      return 'nobody'
    end
    if grant and reaches(alive_until, channel, 'granted ' .. #head .. ' ' .. head .. lock) then
      -- The fence first: without a lock it is a gap, and a lock without it would be given the last holder's.
      if redis.pcall('SET', fence, drawn, option, expires).err or redis.pcall('SET', lock, head, 'PX', grant).err then
        return 'nobody'
      end
      if channel ~= '' then
        -- Before the entry goes: a hash that was empty in between would have lost its expiry.
        redis.pcall('HSET', wait, '!' .. channel, head)
      end
      redis.pcall('HDEL', wait, head)
      tell_next(grant, channel)
      return 'granted'
    end
    redis.pcall('HDEL', wait, head)
  end
  return 'full'
end
