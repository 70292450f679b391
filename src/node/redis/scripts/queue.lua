-- Lists the waiters of a lock.
--
-- KEYS   1 queue
-- ARGV   1 the most waiters to list   2 the key that holds their limits
-- Reply  {the server's time in µs, how many wait, token, ticket, limit, token, ticket, limit, ...}, the first in line
--        first. The limit is 0 if it wants the lock alone, else it shares it beside fewer than `limit` others
--
-- Atomic so that the places belong together. Writes nothing. The second key is not declared, because its slot may be on
-- its way to another server. If it may not be read, all seem to want the lock alone.
local queue, most = KEYS[1], tonumber(ARGV[1])

local length = redis.pcall('ZCARD', queue)
if type(length) ~= 'number' then
  if string.find(length.err, 'WRONGTYPE', 1, true) then
    return redis.error_reply('ERR the queue key ' .. queue .. ' holds another type: delete it to go on')
  end
  return length
end
local time = redis.call('TIME')
local reply = {time[1] * 1000000 + time[2], length}
if most > 0 then
  local line = redis.call('ZRANGE', queue, 0, most - 1, 'WITHSCORES')
  for i = 1, #line, 2 do
    local entry = ARGV[2] and redis.pcall('HGET', ARGV[2], line[i])
    local limit = type(entry) == 'string' and string.match(entry, '^%d+|%d+|%d+|%d+|(%d+)%*')
    local at = #reply
    reply[at + 1] = string.sub(line[i], 1, 256)
    -- tostring would print 14 digits.
    reply[at + 2] = string.format('%.0f', line[i + 1])
    reply[at + 3] = tonumber(limit or 0)
  end
end
return reply
