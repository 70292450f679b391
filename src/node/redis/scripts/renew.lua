-- Extends leases that are still ours; never creates a key (rule 7).
--
-- Needs  value.lua before it
-- KEYS   the locks
-- ARGV   for each lock: value, or token if any fence will do, TTL in ms, or 0 to leave it as it is; then "watch" if the
--        caller has asked to be notified of changes
-- Reply  for each lock: 1 it is ours, 0 the key is gone, -1 it holds something else, {-3, who took it by force}, -4 it
--        has another fence, or {-2, the text of an error}
--
-- A queue that has outlived a grant, in a failover or a restart, grants its place once more. The token is the same
-- then, and another holder may have had the lock in between. Only the fence shows that.
--
-- Atomic per lock because between the compare and the extension the lock could change hands; the locks share a call
-- only to be batched. Idempotent: a replay extends again.
--
-- All keys are read by one command: up to Redis 7.0 every read registers all keys of the script for tracking.
local replies, unread = {}, {}
for i, value in ipairs(redis.call('MGET', unpack(KEYS))) do
  local known = ARGV[2 * i - 1]
  -- Usually the caller knows the whole value.
  local denied = value ~= known and denial(value, known, KEYS[i])
  if not denied and value ~= known and fence_of(known) then
    replies[i] = -4
  elseif not denied and ARGV[2 * i] == '0' then
    replies[i] = 1
  elseif not denied then
    local extended = redis.pcall('PEXPIRE', KEYS[i], ARGV[2 * i])
    replies[i] = type(extended) == 'number' and extended or {-2, extended.err}
  else
    replies[i] = denied
    if denied == 0 then
      unread[#unread + 1] = KEYS[i]
    end
  end
end

-- A key of another type has no value either.
if #unread > 0 and redis.call('EXISTS', unpack(unread)) > 0 then
  for i, lock in ipairs(KEYS) do
    if replies[i] == 0 then
      replies[i] = -redis.call('EXISTS', lock)
    end
  end
end

-- The server may have become a replica that never had the key, or does not have it yet. Only a write shows that.
if #unread > 0 then
  for i, lock in ipairs(KEYS) do
    if replies[i] == 0 then
      local written = redis.pcall('PEXPIRE', lock, 1)
      if type(written) == 'table' then
        replies[i] = {-2, written.err}
      end
    end
  end
end

-- The extension has used up the tracking that the first read registered.
if ARGV[2 * #KEYS + 1] == 'watch' then
  redis.call('MGET', unpack(KEYS))
end
return replies
