-- Releases a lock that is still ours, but leaves its key for a while.
--
-- Needs  value.lua before it
-- KEYS   1 lock
-- ARGV   1 token or value   2 how long in ms   3 the token that stays, which no client knows
-- Reply  1 kept, 0 the key is gone, -1 it holds something else, {-3, who took it by force}
--
-- Atomic because between the compare and the write the lock could change hands. The identity changes so that a renewal
-- that is still on its way finds another one, and cannot restore the TTL. The fence stays, for readers of the lock.
-- Idempotent: a replay finds what stays.
local lock, stays = KEYS[1], ARGV[3]

local value = redis.pcall('GET', lock)
local denied = denial(value, ARGV[1], lock)
if not denied then
  -- A write that needs no memory: a server without memory allows what comes after it.
  redis.call('PEXPIRE', lock, ARGV[2])
  redis.call('SET', lock, with_fence(stays, fence_of(value) or '0'), 'PX', ARGV[2])
elseif denial(value, stays) then
  if denied == 0 then
    -- The server may have become a replica that does not have the key yet. Only a write shows that.
    redis.call('DEL', lock)
  end
  return denied
else
  -- A replay writes too, because its reply counts as a write.
  local left = redis.call('PTTL', lock)
  if left > 0 then
    redis.call('PEXPIRE', lock, left)
  end
end
return 1
