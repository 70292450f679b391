-- Lists the sharers of a lock.
--
-- KEYS   1 lock   2 holders
-- ARGV   1 the most sharers to list
-- Reply  {0}  it is free, or {1, PTTL in ms, value, how many share it, token, ms left, ...}, the first to expire first.
--        The value is as in holder.lua; a holder that has it alone is not a sharer. If it is shared, the second is what
--        the last sharer has left. Or an error about a key that holds another type than sharers
--
-- Atomic so that all belong together. Writes nothing.
local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
if value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  return {0}
elseif type(value) ~= 'string' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = {0, redis.pcall('TYPE', KEYS[1]).ok}
end
local reply = {1, redis.call('PTTL', KEYS[1]), value, 0}
if type(value) == 'string' and string.sub(value, 1, 41) == 'lh1:00000000-0000-0000-0000-000000000000:' then
  local time = redis.call('TIME')
  local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
  local count = redis.pcall('ZCOUNT', KEYS[2], now_ms, '+inf')
  if type(count) ~= 'number' then
    return string.find(count.err, 'WRONGTYPE', 1, true)
      and redis.error_reply('ERR the key ' .. KEYS[2] .. ' holds another type: delete it to go on') or count
  end
  -- Another program may have written a score that is not a time.
  local function left(score)
    return math.min(math.floor(score - now_ms), 9007199254740991)
  end
  reply[4] = count
  if count > 0 then
    reply[2] = left(redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2])
  end
  local all = redis.call('ZRANGEBYSCORE', KEYS[2], now_ms, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[1])
  for i = 1, #all, 2 do
    reply[4 + i] = string.sub(all[i], 1, 256)
    reply[5 + i] = left(all[i + 1])
  end
end
return reply
