-- Extends a place among the sharers of a lock, or gives it up: the second step of a renewal while the slot is being
-- moved, and all of a release.
--
-- Needs  permits.lua before it
-- KEYS   1 holders
-- ARGV   1 token   2 TTL in ms; 0 only to check it, -1 to give it up
-- Reply  1 it was in, 0 it was not
--
-- Atomic because between the read and the write its time could expire. Idempotent: a replay extends again, or finds it
-- gone. Sound without the lock's key: no client ends a phase before its places expire, and a later phase begins without
-- the places of this one.
local time = redis.call('TIME')
local now_ms, span = time[1] * 1000 + math.floor(time[2] / 1000), tonumber(ARGV[2])
local until_then = redis.pcall('ZSCORE', KEYS[1], ARGV[1])
if type(until_then) == 'table' then
  return until_then
end
local is_in = until_then and tonumber(until_then) >= now_ms
if not is_in or span < 0 then
  local removed = removes(KEYS[1], ARGV[1])
  return type(removed) == 'table' and removed or is_in and 1 or 0
elseif span == 0 then
  return 1
end
local left = redis.call('PTTL', KEYS[1])
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, math.ceil(span * 4 / 3))))
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now_ms + span), ARGV[1])
return 1
