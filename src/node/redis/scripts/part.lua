-- Releases a share of a lock (rule 8): waiters may be admitted, and the last sharer deletes the key.
--
-- Needs  permits.lua before it, and behind it keys.lua, value.lua, issue.lua, may_vote.lua, phase.lua, promote.lua,
--        pass_on.lua and part_and_pass_on.lua
-- KEYS   1 lock   2 fence   3 queue   4 wait   5 holders
-- ARGV   1 token; and perhaps a witness of this server's uptime  2 run id   3 seconds
-- Reply  1 it does not share it any more, 0 it did not, -1 the key holds something else
--
-- Atomic because between the read and the removal a phase could end. Idempotent: a replay does not find the token.
-- Defining a function takes as long as a call, so most functions are behind this.
local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
if type(value) ~= 'string' or string.sub(value, 1, 41) ~= 'lh1:00000000-0000-0000-0000-000000000000:'
    or not string.find(value, '^%d+@', 42) then
  if type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  elseif value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
    -- The server may have become a replica that does not have the key yet. Only a write shows that.
    redis.call('DEL', KEYS[1])
    return 0
  end
  return -1
end
local time = redis.call('TIME')
local at = time[1] * 1000 + math.floor(time[2] / 1000)
local until_then = redis.pcall('ZSCORE', KEYS[5], ARGV[1])
if type(until_then) == 'table' and not string.find(until_then.err, 'WRONGTYPE', 1, true) then
  return until_then
elseif type(until_then) ~= 'string' or tonumber(until_then) < at then
  removes(KEYS[5], ARGV[1])
  return 0
end
local removed = removes(KEYS[5], ARGV[1])
if type(removed) == 'table' then
  return removed
end
local left = redis.call('ZCOUNT', KEYS[5], at, '+inf')
if redis.pcall('EXISTS', KEYS[3]) == 0 then
  if left == 0 then
    redis.call('DEL', KEYS[1])
    return 1
  end
  local last = redis.pcall('ZRANGE', KEYS[5], -1, -1, 'WITHSCORES')
  if type(last[1]) == 'string' and string.sub(last[1], -11) == ' (released)' then
    -- As in phase.lua: key and set live no longer than a released place that stays, if no sharer is in for longer.
    local span = last[2] - at + 1
    for _, key in ipairs({KEYS[1], KEYS[5]}) do
      if span < redis.call('PTTL', key) then
        redis.call('PEXPIRE', key, string.format('%.0f', span))
      end
    end
  end
  return 1
end

