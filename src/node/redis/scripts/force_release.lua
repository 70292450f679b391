-- Takes a lock away from whoever holds or shares it, unless it is no lock at all: for the first of its queue, or for
-- nobody. Its holder finds out who did it, for as long as the key would have lived, and so do all who share it.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, phase.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 the key where its holder looks   2 the text for it there, behind the holder's identity, or behind that of all
--        who share it and their fence
-- Reply  1 deleted or passed on, 0 there was none, or a WRONGTYPE error
--
-- Atomic because between the look at the type and the deletion the key could become somebody's data. A replay takes
-- the lock away from the next holder too: nothing tells it from a second wish. The text comes last, and is no declared
-- key: a user who may not write it can take a lock all the same.
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
