-- Part of a script: gives a lock to the first of its queue, or lets its first ones share it.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua and phase.lua before it
-- KEYS   1 lock   2 fence   3 queue, a sorted set: token -> ticket
--        4 wait, a hash:
--          token -> "grant in ms|alive until, in µs|restart delay in s|fence memory in ms|channel". A process is known
--            by its channel. A "~" before the channel: no notification arrives there, and the process polls. A
--            "<limit>*" before both: it shares the lock, while others take fewer than `limit` permits
--          "!" .. process -> its mark: until when, in µs, a silent process counts as alive. That is a window after its
--            last poll or leave, and a grant after it was granted something. Without a mark it is alive. No release of
--            this library has had other marks. Clients from before the first one left the time of a grant, which has
--            passed here, so that they are skipped until they poll, as they intended. They take any mark for that: when
--            one of them releases the lock, waiters that have polled here lose their places, and have them back within
--            a heartbeat of 5 s
--          ">" -> "ticket|process", the memo: up to this ticket all waiters are of that process
--          ">>" -> "until when, in µs|ticket|ticket": how far processes behind the next one were notified. Enough are until
--            the first ticket is the next one's, and the queue was read up to the second one
--        5 holders
--
-- promote(me, now, issued, count): `count` permits are taken, 0 if it is free or about to be. `now` is the text of the
-- time in µs, `issued` that of the next fence. Afterwards the first waiters that fit have the lock for their grants,
-- with a fence, and were notified; so was the next one. It stops at `me`, and where there is no waiter to grant to, or
-- not yet, or no right to do it. It returns
--   whether a waiter is still ahead of `me`;
--   how many permits are taken then, -1 if it is held alone;
--   whether the rest is for another call: too many could not be reached, or many were admitted. Without `me`, only if no
--     waiter was notified to make that call.
-- A waiter that cannot be reached loses its place, and has it back when it polls with its ticket. So does the first one
-- that does not fit and has gone: it must not hold up those behind it. A process that is stopped, and so still counts
-- as a receiver, or that polls and was killed, is given what there is for the length of one grant: then its mark has
-- expired, which keeps its other waiters from it. Until then it may have more than one grant, like a healthy process
-- that has not confirmed the first one yet.
-- Nothing here raises an error, because a release must not fail due to its queue. The first write is one that
-- `maxmemory` does not refuse, and a server that has allowed the first write of a script allows the others.
--
-- Notifications are "granted <length of the token> <token><lock>" and "next <ms> <token>": poll after that many ms,
-- because the process that was granted the lock may be stopped. The next in line gets the latter, and if that one is of
-- the same process, so does the next of another, at whatever place. That one may be stopped as well: so the first
-- waiters of more processes get it, unless enough of them had it within a grant time-out. A waiter that polls then learns
-- how long the grant at that time lasts.

-- The field of the memo. No token and no mark looks like it.
local MEMO, SPREAD = '>', '>>'
-- How many waiters are read at a time.
local PAGE = 32
-- How many are admitted by one call: then the next one is notified to continue.
local AT_ONCE = 32
-- How many pages are read for one grant, in some milliseconds at most. The next grant continues from there.
local PAGES = 100
-- How many processes behind the next one are notified at once, how many of them have to be left, and how many waiters
-- are read for that.
local MORE, RESERVE, AHEAD = 12, 6, 64

-- Set before promote: the caller's witness of the uptime, if it has sent one. It holds for every waiter's delay.
local witness_run, witnessed
-- Known once recovers_for has read the uptime.
local run_id = false

-- recovers_for(delay) returns the seconds for which this server, which may have forgotten a lease, must grant nothing
-- to a waiter with this restart delay (0 or less: it may), or nil and an error reply. A script reads the uptime once,
-- and not at all without a delay.
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

-- process_of(channel) returns the process, and whether a notification can reach it.
local function process_of(channel)
  if string.sub(channel, 1, 1) == '~' then
    return string.sub(channel, 2), false
  end
  return channel, true
end

-- memo() returns a ticket up to which all waiters are of one process, as text, and that process; or nil.
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

-- clear() drops what is not needed without waiters. A key that is not a hash is not ours.
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

  -- reaches(alive_until, channel, message) returns whether a waiter is there, and sends it the message. Without a
  -- message it only checks.
  local function reaches(alive_until, channel, message)
    local process, hears = process_of(channel)
    if silent(process) or hears and is_deaf[process] then
      return false
    elseif not hears then
      return not has_gone_by(alive_until, now)
    end
    -- A killed process costs one message, however many waiters it has. An error, such as no right to the channel, shows
    -- nothing about the process, which polls too.
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

  local granted, last_grant, last_process = 0, nil, nil
  -- Whether the next in line was notified.
  local is_told = false

  -- spread(grant, granted_to, token, process) notifies the first waiters of further processes behind the next one, `token`
  -- of `process`, unless enough have been notified by whom this grant will be noticed.
  local function spread(grant, granted_to, token, process)
    local ticket = tonumber(redis.pcall('ZSCORE', queue, token))
    local text = redis.pcall('HGET', wait, SPREAD)
    local till, enough, last = string.match(type(text) == 'string' and text or '', '^(%d+)|(%d+)|(%d+)$')
    -- A time that is too far ahead is from before the clock was set back.
    if not till or has_gone_by(till, now) or till - now > grant * 1000 then
      till, enough, last = string.format('%.0f', now + grant * 900), 0, 0
    end
    if not ticket or ticket < tonumber(enough) then
      return
    end
    -- The ticket of the first one that is too far behind.
    local from = string.format('(%.0f', ticket)
    local far = redis.pcall('ZRANGE', queue, from, '+inf', 'BYSCORE', 'LIMIT', AHEAD, 1, 'WITHSCORES')[2] or '+inf'
    if tonumber(last) > ticket then
      from = '(' .. last
    end
    local told, is_told_of, is_read, is_over = {}, {[granted_to] = true, [process] = true}, false, false
    while not is_over do
      local line = redis.pcall('ZRANGE', queue, from, '(' .. far, 'BYSCORE', 'LIMIT', 0, PAGE, 'WITHSCORES')
      is_over = #line < 2 * PAGE
      for i = 1, #line, 2 do
        if line[i] == me or #told == MORE then
          is_over = true
          break
        end
        local is_known, alive_until, _, _, channel = entry(line[i])
        local of = is_known and process_of(channel)
        is_read, last, from = true, line[i + 1], '(' .. line[i + 1]
        if of and not is_told_of[of] and reaches(alive_until, channel, 'next ' .. grant .. ' ' .. line[i]) then
          is_told_of[of] = true
          told[#told + 1] = last
        end
      end
    end
    if is_read then
      redis.pcall('HSET', wait, SPREAD, till .. '|' .. (told[#told - RESERVE + 1] or 0) .. '|' .. last)
    end
  end

  -- walk(grant, granted_to) notifies the first of the queue, and the first of another process than `granted_to`, which
  -- was granted the lock. It returns the ticket up to which all are of that process, and the one that the memo had; or
  -- nil if the first page was enough.
  local function walk(grant, granted_to)
    local passed, known = nil, nil
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
          is_over, is_told = true, true
          if granted > 0 then
            spread(last_grant, granted_to, token, process_of(channel))
          end
          break
        else
          is_told, last = true, token
          local up_to, process
          if not is_over then
            up_to, process = memo()
          end
          if process == granted_to then
            -- `me` checks for itself, also among those that are skipped.
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

  -- Notifies the next in line, which polls at once if the rest is for another call. Without the memo each grant would walk
  -- past all waiters of a process again.
  local function over(is_ahead, is_full)
    if granted > 0 or is_full and me == '' then
      local passed, known = walk(is_full and 0 or last_grant, last_process)
      if granted > 0 and type(passed) == 'string' and passed ~= known then
        redis.pcall('HSET', wait, MEMO, passed .. '|' .. last_process)
      end
    end
    return is_ahead, count, is_full and (me ~= '' or not is_told)
  end

  -- An error has no first element either.
  local function admitted(token, grant, memory, limit)
    if limit > 0 and count > 0 then
      return not joins(token, grant, now_ms)
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
    -- Not even the lock that is being released here: the release may be the replay of one that this server has
    -- forgotten, along with the grant that came after it.
    if grant and (recovers_for(delay) or 1) > 0 then
      return over(false)
    elseif grant and count > 0 and count >= limit then
      -- It does not fit, and keeps waiting.
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
      count = limit == 0 and -1 or count + 1 + beyond_one(head)
      local process = process_of(channel)
      granted, last_grant, last_process = granted + 1, grant, process
      local mark, lapses = redis.pcall('HGET', wait, '!' .. process), string.format('%.0f', now + grant * 1000)
      if type(mark) ~= 'string' or not has_gone_by(mark, lapses) then
        -- Before the entry is deleted: a hash that was empty in between would have lost its expiry.
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
