-- Who waits for a lock.
--
-- KEYS   1 queue
-- ARGV   1 how many of them at most
-- Reply  {the server's time in µs, how many wait, token, ticket, token, ticket, ...}, the first one first
--
-- Atomic so that the places belong together. Writes nothing.
local queue, limit = KEYS[1], tonumber(ARGV[1])

local length = redis.pcall('ZCARD', queue)
if type(length) ~= 'number' then
  if string.find(length.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('ERR the queue key ' .. queue .. ' holds another type: delete it to go on')
  end
  return length
end
local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2], length}
if limit > 0 then
  local line = redis.call('ZRANGE', queue, 0, limit - 1, 'WITHSCORES')
  for i = 1, #line, 2 do
    reply[i + 2] = string.sub(line[i], 1, 256)
    -- tostring would print 14 digits.
    reply[i + 3] = string.format('%.0f', line[i + 1])
  end
end
return reply
