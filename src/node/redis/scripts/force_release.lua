-- Takes a lock from its holder or sharers, unless the key is not a lock: for the first of its queue, or it becomes
-- free. The holder finds out who did it, for as long as the key would have lived, and so do all sharers.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua, phase.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 the key that its holder reads   2 the text for it there, after the holder's identity, or after that of all
--        sharers and their fence
-- Reply  1 deleted or passed on, 0 there was none, or a WRONGTYPE error
--
-- Atomic because between the check of the type and the deletion the key could become other data. A replay takes the
-- lock from the next holder too, because it looks like a second request. The text is written last, and its key is not
-- declared, so that a user without the right to write it can still take a lock.
local value = redis.call('GET', lock)
if not value then
  return 0
end
local left = redis.pcall('PTTL', lock)
local is_shared = phase_of(value)
if is_shared and type(redis.pcall('ZCARD', holders)) == 'number' then
  redis.call('DEL', holders)
end
local released = pass_on(0)
if type(left) == 'number' and left > 0 and string.sub(value, 1, 4) == 'lh1:' then
  local whose = string.sub(value, 1, 40) .. (is_shared and ':' .. is_shared .. '@' or '')
  redis.pcall('SET', ARGV[1], whose .. ARGV[2], 'PX', left)
end
return released
