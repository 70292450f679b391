-- Part of a script: gives a lock to the first of its queue, or lets the first ones of it share it.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua and phase.lua before it
-- KEYS   1 lock   2 fence   3 queue, a sorted set: token -> ticket
--        4 wait, a hash:
--          token -> "grant in ms|alive until, in µs|restart delay in s|fence memory in ms|channel". A process is known
--            by its channel. A "~" before the channel says that no notification arrives there, and the process polls. A
--            "<limit>*" before both: it shares the lock, beside fewer than so many others
--          "!" .. process -> its mark: until when, in µs, it counts as alive if it says nothing. That is a window after
--            it has spoken, and a grant after it was granted something. Without a mark it is alive. No release of this
--            library has had other marks. Clients of before the first one left the moment of a grant, which is over
--            here, so that they are passed over until they speak, as they meant it. They take any mark for that: when
--            one of them parts with the lock, those who have spoken here lose their places, and have them back within a
--            heartbeat of 5 s
--          ">" -> "ticket|process", the memo: up to this ticket all waiters are of that process
--        5 holders
--
-- promote(me, now, issued, count): `count` share the lock now, 0 if it is free or about to be. `now` is the text of the
-- time in µs, `issued` that of the next fence. The first ones of the queue that fit have the lock for their grants
-- then, with a fence, and were called; so was who comes next. It stops at `me`, and where there is nobody to grant to,
-- or not yet, or no right to do it. It gives
--   whether somebody comes before `me` still;
--   how many share it then, -1 if it is somebody's alone;
--   whether the rest is for another call: too many could not be reached, or many were let in.
-- Who cannot be reached loses its place, and has it back when it polls with its ticket. So does the first one that does
-- not fit and is not there any more: it must not hold up those behind it. A process that is stopped, and so still
-- counts as a receiver, or that polls and was killed, is given what there is for the length of one grant: then its mark
-- is over, and keeps its other waiters from it. Until then it may have more than one grant, as one that is well does
-- that has not come to confirm the first.
-- Nothing here raises an error, since a release must not fail for its queue's sake. The first write is one that
-- `maxmemory` does not refuse, and a server that has allowed the first write of a script allows the others.
--
-- Calls are "granted <length of the token> <token><lock>" and "next <ms> <token>": look after so long, for who was
-- granted the lock may be stopped. The next in line hears the latter, and if that one is of the same process, so does
-- the next of another, at whatever place.

-- The field of the memo. No token and no mark looks like it.
local MEMO = '>'
-- How many waiters are read at a time.
local PAGE = 32
-- How many are let in by one call: then the next one is told to go on.
local AT_ONCE = 32
-- How many pages are read for one grant, in some milliseconds at most. The next grant goes on from there.
local PAGES = 100

-- Set before promote: the caller's witness of the uptime, if it has sent one. It holds for every waiter's delay.
local witness_run, witnessed
-- Known after recovers_for has looked at the uptime.
local run_id = false

-- recovers_for(delay) gives the seconds for which this server, which may have forgotten a lease, is to grant nothing to
-- who has asked for this restart delay (0 or less: it may), or nil and an error reply. One look at the uptime is enough
-- for a script, and without a delay there is none.
local recovery = {['0'] = 0}
local function recovers_for(delay)
  if not recovery[delay] then
    local run, missing, refused = may_vote(delay, witness_run, witnessed)
    if refused then
      return nil, refused
    end
    recovery[delay], run_id = missing, run
  end
  return recovery[delay]
end

-- process_of(channel) gives the process, and whether a notification can reach it.
local function process_of(channel)
  if string.sub(channel, 1, 1) == '~' then
    return string.sub(channel, 2), false
  end
  return channel, true
end

-- memo() gives a ticket up to which all waiters are of one process, as text, and that process; or nothing.
local function memo()
  local text = redis.pcall('HGET', wait, MEMO)
  if type(text) == 'string' then
    return string.match(text, '^(%d+)|(.*)$')
  end
end

-- has_gone_by(moment, now) compares two times in µs, as text.
local function has_gone_by(moment, now)
  return (tonumber(moment) or 0) <= tonumber(now)
end

-- clear() drops what nobody needs when nobody waits. A key that is no hash is not ours.
local function clear()
  if type(redis.pcall('HDEL', wait, MEMO)) == 'number' then
    redis.pcall('DEL', wait)
  end
end

local function promote(me, now, issued, count)
  local is_silent, is_deaf, now_ms = {}, {}, millis(now)

  local function silent(process)
    if is_silent[process] == nil then
      local mark = redis.pcall('HGET', wait, '!' .. process)
      is_silent[process] = type(mark) == 'string' and has_gone_by(mark, now)
    end
    return is_silent[process]
  end

  -- reaches(alive_until, channel, message) tells whether a waiter is there, and gives it the message. Without one it
  -- only asks.
  local function reaches(alive_until, channel, message)
    local process, hears = process_of(channel)
    if silent(process) or hears and is_deaf[process] then
      return false
    elseif not hears then
      return not has_gone_by(alive_until, now)
    end
    -- A killed process costs one message, however many of its waiters there are. An error, such as no right to the
    -- channel, says nothing about the process, which polls too.
    if message then
      is_deaf[process] = redis.pcall('PUBLISH', process, message) == 0
    else
      is_deaf[process] = redis.pcall('PUBSUB', 'NUMSUB', process)[2] == 0
    end
    return not is_deaf[process]
  end

  local function entry(token)
    local text = redis.pcall('HGET', wait, token)
    if type(text) == 'string' then
      local grant, alive_until, delay, memory, channel = string.match(text, '^(%d+)|(%d+)|(%d+)|(%d+)|(.*)$')
      if grant then
        local limit, rest = string.match(channel, '^(%d+)%*(.*)$')
        return grant, alive_until, delay, memory, rest or channel, tonumber(limit or 0)
      end
    end
  end

  local function drop(token)
    redis.pcall('ZREM', queue, token)
    redis.pcall('HDEL', wait, token)
  end

  -- walk(grant, granted_to) notifies the first of the queue, and the first of another process than the one that was
  -- granted the lock. It gives the ticket up to which all are of that process, and what the memo said of it; or nothing
  -- if the first page was enough.
  local function walk(grant, granted_to)
    local is_told, passed, known = false, nil, nil
    for page = 1, PAGES do
      local line
      if passed then
        line = redis.pcall('ZRANGE', queue, '(' .. passed, '+inf', 'BYSCORE', 'LIMIT', 0, PAGE)
      else
        line = redis.pcall('ZRANGE', queue, 0, PAGE - 1)
      end
      local is_over, last = #line < PAGE, nil
      for _, token in ipairs(line) do
        local is_known, alive_until, _, _, channel = entry(token)
        local is_same = is_known and process_of(channel) == granted_to
        if token == me then
          is_over = true
          break
        elseif is_same and is_told then
          last = token
        elseif not is_known or not reaches(alive_until, channel, 'next ' .. grant .. ' ' .. token) then
          drop(token)
        elseif not is_same then
          is_over = true
          break
        else
          is_told, last = true, token
          local up_to, process
          if not is_over then
            up_to, process = memo()
          end
          if process == granted_to then
            -- `me` looks for itself, also among those that are passed over.
            local mine = tonumber(redis.pcall('ZSCORE', queue, me))
            is_over = mine and mine <= tonumber(up_to)
            passed, known, last = up_to, up_to, nil
            break
          end
        end
      end
      if page == 1 and is_over then
        return
      elseif last then
        passed = redis.pcall('ZSCORE', queue, last)
      end
      if is_over or passed and type(passed) ~= 'string' then
        return passed, known
      end
    end
    return passed, known
  end

  local granted, last_grant, last_process = 0, nil, nil

  -- Tells who comes next. Without the memo each grant would walk past all waiters of a process again.
  local function over(is_ahead, is_full)
    if granted > 0 then
      local passed, known = walk(granted < AT_ONCE and last_grant or 0, last_process)
      if type(passed) == 'string' and passed ~= known then
        redis.pcall('HSET', wait, MEMO, passed .. '|' .. last_process)
      end
    end
    return is_ahead, count, is_full
  end

  -- An error has no first element either.
  local function admitted(token, grant, memory, limit)
    if limit > 0 and count > 0 then
      return not joins(token, grant, now_ms, limit)
    end
    local option, expires = floor_expires(issued, now, memory)
    if limit > 0 then
      return not begins(token, grant, now_ms, issued, option, expires)
    end
    -- The floor first: without a lock it is a gap, and a lock without it may be followed by one with its fence.
    local floor = option and redis.pcall('SET', fence, issued, option, expires) or {}
    return not floor.err and not redis.pcall('SET', lock, with_fence(token, issued), 'PX', grant).err
  end

  for _ = 1, 1000 do
    -- An error has no first element either.
    local head = redis.pcall('ZRANGE', queue, 0, 0)[1]
    if head == me then
      return over(false)
    elseif not head then
      clear()
      return over(false)
    end
    local grant, alive_until, delay, memory, channel, limit = entry(head)
    -- Not even what is being released here: the release may be the replay of one that this server has forgotten, with
    -- the grant that came after it.
    if grant and (recovers_for(delay) or 1) > 0 then
      return over(false)
    elseif grant and count > 0 and count >= limit then
      -- It does not fit, and waits on.
      if reaches(alive_until, channel) then
        return over(true)
      end
      drop(head)
    elseif grant and granted >= AT_ONCE then
      return over(true, true)
    elseif redis.pcall('ZREM', queue, head) ~= 1 then
      return over(false)
    elseif grant and reaches(alive_until, channel, 'granted ' .. #head .. ' ' .. head .. lock) then
      if not admitted(head, tonumber(grant), memory, limit) then
        return over(false)
      end
      count = limit == 0 and -1 or count + 1
      local process = process_of(channel)
      granted, last_grant, last_process = granted + 1, grant, process
      local mark, lapses = redis.pcall('HGET', wait, '!' .. process), string.format('%.0f', now + grant * 1000)
      if type(mark) ~= 'string' or not has_gone_by(mark, lapses) then
        -- Before the entry goes: a hash that was empty in between would have lost its expiry.
        redis.pcall('HSET', wait, '!' .. process, lapses)
      end
      redis.pcall('HDEL', wait, head)
      if limit == 0 then
        return over(true)
      end
    else
      redis.pcall('HDEL', wait, head)
    end
  end
  return over(true, true)
end
