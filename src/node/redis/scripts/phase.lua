-- Part of a script: the sharers of a lock.
--
-- Needs  keys.lua, value.lua and permits.lua before it
-- KEYS   1 lock   2 fence   5 holders, a sorted set: token -> until when, in ms of this server's clock
--
-- While a lock is shared, its key has the value of an acquisition that was never made: that of the nil UUID, with the
-- fence of this phase. So other libraries, and older versions of this one, find it taken.
--
-- 1. An entry of `holders` counts only while the lock's key says that it is shared: each new phase empties the set.
-- 2. A sharer counts until its time expires by this server's clock, like a key: as many as it takes permits. When another
--    is admitted, those that have expired are removed: they do not return when the clock goes back.
-- 3. The lock's key and the set outlive each sharer: whatever confirms a share reads both. They are written when less
--    than a TTL of either is left, and then to 4/3 of a TTL: about once in a third of a TTL, however many renew. So
--    clients that track the lock's key are not disturbed. Once only released places that stay are left, key and set
--    live no longer than those.
-- 4. The first write is one that `maxmemory` may refuse, except for a token that already shares.
local holders = KEYS[5]
local SHARED = 'lh1:00000000-0000-0000-0000-000000000000'

-- phase_of(value) returns the text of the fence of the phase that this value stands for, or nil.
local function phase_of(value)
  return type(value) == 'string' and string.sub(value, 1, 40) == SHARED and fence_of(value) or nil
end

-- millis(now) takes the text of the time in µs.
local function millis(now)
  return tonumber(string.sub(now, 1, -4))
end

-- permits(now_ms) returns how many permits are taken of a lock whose key says that it is shared, or an error reply.
local function permits(now_ms)
  local count = redis.pcall('ZCOUNT', holders, now_ms, '+inf')
  local sum = type(count) == 'number' and count > 0 and redis.pcall('ZSCORE', holders, '+')
  if type(sum) ~= 'string' then
    return count
  end
  local more = -sum
  for _, token in ipairs(redis.pcall('ZRANGEBYSCORE', holders, 0, '(' .. now_ms)) do
    more = more - beyond_one(token)
  end
  return count + math.max(more, 0)
end

local function is_in(token, now_ms)
  local until_then = redis.pcall('ZSCORE', holders, token)
  return type(until_then) == 'string' and tonumber(until_then) >= now_ms
end

-- outlives(span) makes key and set outlive a sharer that was just admitted, or stays, for `span` ms. Neither ever lives
-- for less than before.
local function outlives(span)
  local key, set = redis.call('PTTL', lock), redis.call('PTTL', holders)
  if math.min(key, set) > span then
    return
  end
  local longer = math.ceil(span * 4 / 3)
  redis.call('PEXPIRE', lock, string.format('%.0f', math.max(key, longer)))
  redis.call('PEXPIRE', holders, string.format('%.0f', math.max(set, longer)))
end

-- touches() is a write that changes nothing and needs no memory: the reply counts as a write, and a server without
-- memory allows what comes after one.
local function touches()
  local left = redis.call('PTTL', holders)
  if left > 0 then
    redis.call('PEXPIRE', holders, left)
  else
    redis.call('ZREM', holders, '')
  end
end

-- calls(token, span) asks a waiter that listens to poll after `span` ms. It returns whether its process received that.
local function calls(token, span)
  local entry = redis.pcall('HGET', wait, token)
  local channel = type(entry) == 'string' and string.match(entry, '^%d+|%d+|%d+|%d+|(.*)$')
  channel = channel and (string.match(channel, '^%d+%*(.*)$') or channel)
  if not channel or string.sub(channel, 1, 1) == '~' then
    return false
  end
  return redis.pcall('PUBLISH', channel, string.format('next %.0f %s', span, token)) ~= 0
end

-- calls_first(span) asks the first waiter to poll after `span` ms: the answer to its last poll named a later end, and a
-- waiter for sharers has no key tracked.
local function calls_first(span)
  local first = redis.pcall('ZRANGE', queue, 0, 0)[1]
  if first then
    calls(first, span)
  end
end

-- calls_another(first) asks the first waiter to poll at once if it is not `first`, which left or was admitted. While it
-- was behind, it polled seldom, and had no key tracked.
local function calls_another(first)
  local now_first = first and redis.pcall('ZRANGE', queue, 0, 0)[1]
  if now_first and now_first ~= first then
    calls(now_first, 0)
  end
end

-- ends_with_the_last(now_ms, before): if no sharer is in for longer than a released place that stays, key and set live
-- no longer than that. It returns in how many ms the last place ends, if waiters do not know: a sharer that has gone
-- would have been in until `before`, which is later.
local function ends_with_the_last(now_ms, before)
  local last = redis.pcall('ZRANGE', holders, -1, -1, 'WITHSCORES')
  local left = type(last[1]) == 'string' and last[2] - now_ms + 1
  if left and string.sub(last[1], -11) == ' (released)' then
    if left > 0 and left < redis.call('PTTL', lock) then
      redis.call('PEXPIRE', lock, string.format('%.0f', left))
    end
    if left > 0 and left < redis.call('PTTL', holders) then
      redis.call('PEXPIRE', holders, string.format('%.0f', left))
    end
  end
  if left and left > 0 and before and tonumber(before) > tonumber(last[2]) then
    return left
  end
end

-- stays(token, span, now_ms, as): a sharer stays for `span` ms from now on. `as` takes its place, if given.
local function stays(token, span, now_ms, as)
  local until_then = string.format('%.0f', now_ms + span)
  local changed = redis.pcall('ZADD', holders, 'CH', until_then, as or token)
  if changed ~= 1 then
    touches()
    redis.call('ZADD', holders, until_then, as or token)
  end
  if as then
    -- Only afterwards: a set that was empty in between would have lost its expiry.
    redis.call('ZREM', holders, token)
  end
  outlives(span)
end

-- adds(token, span, now_ms) puts a sharer into the set. It returns nil, or an error reply.
local function adds(token, span, now_ms)
  local added, more = redis.pcall('ZADD', holders, string.format('%.0f', now_ms + span), token), beyond_one(token)
  if type(added) == 'table' then
    return added
  elseif added == 1 and more > 0 then
    redis.call('ZADD', holders, 'INCR', -more, '+')
  end
end

-- joins(token, span, now_ms) admits a sharer beside others. It returns nil, or an error reply.
local function joins(token, span, now_ms)
  local refusal = adds(token, span, now_ms)
  if refusal then
    return refusal
  end
  outlives(span)
  local expired, more = redis.pcall('ZRANGEBYSCORE', holders, 0, '(' .. now_ms), 0
  for i, sharer in ipairs(expired) do
    more = more + beyond_one(sharer)
    -- Lua passes some thousands of arguments at most.
    if i % 1000 == 0 or i == #expired then
      redis.call('ZREM', holders, unpack(expired, i - (i - 1) % 1000, i))
    end
  end
  gives_back(holders, more)
end

-- begins(token, span, now_ms, issued, option, expires) begins a phase with one. It returns nil, or an error reply.
local function begins(token, span, now_ms, issued, option, expires)
  local members = redis.pcall('ZCARD', holders)
  if type(members) == 'table' then
    return string.find(members.err, 'WRONGTYPE', 1, true)
      and redis.error_reply('ERR the key ' .. holders .. ' holds another type: delete it to go on') or members
  end
  -- The floor first: without a phase it is only a gap.
  local floor = option and redis.pcall('SET', fence, issued, option, expires) or {}
  if floor.err then
    return floor
  end
  if option and members > 0 then
    -- Before the lock's own key: without the right to this one, nothing would be left that keeps others out.
    redis.call('DEL', holders)
  end
  local set = redis.pcall('SET', lock, with_fence(SHARED .. '@shared', issued), 'PX', span)
  if set.err then
    return set
  end
  if not option and members > 0 then
    redis.call('DEL', holders)
  end
  local refusal = adds(token, span, now_ms)
  if refusal then
    return refusal
  end
  redis.call('PEXPIRE', holders, span)
end

