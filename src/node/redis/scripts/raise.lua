-- The second phase of a quorum's fence: raises the floor under a lock that is still ours (rule 10), and the fence that
-- readers of the lock see.
--
-- Needs  value.lua, issue.lua and floor.lua before it
-- KEYS   1 lock   2 fence
-- ARGV   1 token or value  2 fence   3 fence memory in ms
-- Reply  1 raised, 0 the key is gone, -1 it holds something else
--
-- Atomic because the floor counts only if the lock was ours when it was raised: the next holder is issued more.
-- Idempotent: a replay finds the floor and the value raised, and nothing lowers them.
local lock, to = KEYS[1], ARGV[2]

local value = redis.pcall('GET', lock)
local refused = denial(value, ARGV[1]) or raise_floor(KEYS[2], to, ARGV[3])
if refused then
  return refused
end
local higher = raised(value, to)
if higher ~= value then
  redis.call('SET', lock, higher, 'XX', 'KEEPTTL')
end
return 1
