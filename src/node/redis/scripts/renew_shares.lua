-- Extends shares that are still ours; never brings one back (rule 7).
--
-- Needs  permits.lua before it
-- KEYS   n locks, then n holders
-- ARGV   n tokens, then n TTLs in ms, or 0 to leave it as it is, then n fences of their phases, or "" where any will do
-- Reply  for each: 1 it is ours, 0 it is gone, -1 the key holds something else, {-2, the text of an error}, or {-3, who
--        took it by force}
--
-- Atomic per share because between the read and the extension its phase could end; the shares share a call only to be
-- batched. Idempotent: a replay extends again. Never sent tracked: up to Redis 7.0 that registers all keys, and
-- `holders` changes with every renewal.
local n = #KEYS / 2
local SHARED = 'lh1:00000000-0000-0000-0000-000000000000:'
local replies, time = {}, redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)

-- The shares that are in, by lock: their places in the call, and one command that extends all of them.
local found, locks = {}, {}
-- Until when a share lasts, by its TTL.
local later = {}

-- look(i, lock) notes a share that is in. For any other it returns the reply.
local function look(i, lock)
  local holders, token = KEYS[n + i], ARGV[i]
  local until_then = redis.pcall('ZSCORE', holders, token)
  if type(until_then) == 'table' and not string.find(until_then.err, 'WRONGTYPE', 1, true) then
    return {-2, until_then.err}
  elseif type(until_then) ~= 'string' or tonumber(until_then) < now_ms then
    return 0
  elseif ARGV[n + i] == '0' then
    return 1
  end
  local ours = found[lock]
  if not ours then
    ours = {places = {}, call = {'ZADD', holders, 'XX', 'CH'}}
    found[lock], locks[#locks + 1] = ours, lock
  end
  local places, call, ttl = ours.places, ours.call, ARGV[n + i]
  later[ttl] = later[ttl] or string.format('%.0f', now_ms + ttl)
  places[#places + 1] = i
  call[#call + 1] = later[ttl]
  call[#call + 1] = token
end

-- extend(lock, places, call) returns the reply for all of them.
local function extend(lock, places, call)
  local holders, changed = call[2], redis.pcall(unpack(call))
  if type(changed) == 'table' or changed == 0 then
    -- It writes in any case, because its reply counts as a write. And a server without memory allows what comes after a
    -- write that needs none.
    local left = redis.call('PTTL', holders)
    if left > 0 then
      redis.pcall('PEXPIRE', holders, left)
    else
      redis.pcall('ZREM', holders, '')
    end
    changed = redis.pcall(unpack(call))
  end
  if type(changed) == 'table' then
    return {-2, changed.err}
  end
  local key, set = redis.call('PTTL', lock), redis.call('PTTL', holders)
  for _, i in ipairs(places) do
    local ttl = tonumber(ARGV[n + i])
    if math.min(key, set) <= ttl then
      local longer = math.ceil(ttl * 4 / 3)
      key, set = math.max(key, longer), math.max(set, longer)
      redis.call('PEXPIRE', lock, string.format('%.0f', key))
      redis.call('PEXPIRE', holders, string.format('%.0f', set))
    end
  end
  return 1
end

-- {-3, text}: it was taken by force from all sharers of this phase. The key is in the slot of the lock.
local function forced(lock, phase)
  local key = string.find(lock, '^[^{]*{[^}]+}') and lock .. ':lht:forced' or '{' .. lock .. '}:lh:forced'
  local left, whose = redis.pcall('GETRANGE', key, 0, 575), SHARED .. phase .. '@'
  return type(left) == 'string' and string.sub(left, 1, #whose) == whose and {-3, string.sub(left, #whose + 1)}
end

local values = redis.call('MGET', unpack(KEYS, 1, n))
for i = 1, n do
  local lock, value, phase = KEYS[i], values[i], ARGV[2 * n + i]
  local is_later = value and phase ~= '' and string.sub(value, 1, 42 + #phase) ~= SHARED .. phase .. '@'
  if not value then
    -- A key of another type has no value either.
    replies[i] = -redis.call('EXISTS', lock)
  elseif string.sub(value, 1, 41) ~= SHARED then
    replies[i] = -1
  elseif is_later then
    -- A later phase, which its token may have joined again from a queue: its own has ended.
    replies[i] = 0
  else
    replies[i] = look(i, lock)
  end
  if replies[i] == 0 then
    -- The server may have become a replica that never had it, or does not have it yet. Only a write shows that.
    local written = removes(KEYS[n + i], is_later and '' or ARGV[i])
    if type(written) == 'table' and not string.find(written.err, 'WRONGTYPE', 1, true) then
      replies[i] = {-2, written.err}
    end
  end
  if (replies[i] == 0 or replies[i] == -1) and phase ~= '' then
    replies[i] = forced(lock, phase) or replies[i]
  end
end
for _, lock in ipairs(locks) do
  local ours = found[lock]
  local reply = extend(lock, ours.places, ours.call)
  for _, i in ipairs(ours.places) do
    replies[i] = reply
  end
end
return replies
