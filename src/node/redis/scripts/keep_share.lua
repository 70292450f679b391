-- Releases a share that is still ours, but leaves its place taken for a while.
--
-- Needs  keys.lua, value.lua, permits.lua and phase.lua before it
-- KEYS   1 lock   2 not used   3 queue   4 wait   5 holders
-- ARGV   1 token   2 how long in ms   3 the token that stays, which no client knows
-- Reply  1 kept, 0 it is gone, -1 the key holds something else
--
-- Atomic because between the read and the write the phase could end. The token changes so that a renewal that is still
-- on its way does not find it. Idempotent: a replay finds what stays, and leaves it alone.
local value, time = redis.pcall('GETRANGE', lock, 0, 255), redis.call('TIME')
if value == '' and redis.call('EXISTS', lock) == 0 then
  value = false
end
if not phase_of(value) then
  local denied = denial(value, SHARED) or -1
  if denied == 0 then
    -- The server may have become a replica that does not have the key yet. Only a write shows that.
    redis.call('DEL', lock)
  end
  return denied
end
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
if is_in(ARGV[3], now_ms) then
  touches()
  return 1
elseif not is_in(ARGV[1], now_ms) then
  removes(holders, ARGV[1])
  return 0
end
stays(ARGV[1], tonumber(ARGV[2]), now_ms, ARGV[3])
ends_with_the_last(now_ms)
calls_first(ARGV[2] + 1)
return 1
