-- Extends leases that are still ours; never creates a key (rule 7).
--
-- KEYS   the locks
-- ARGV   for each lock: token, TTL in ms
-- Reply  for each lock: 1 extended, 0 the key is gone, -1 it holds something else, or {-2, the text of an error}
--
-- Atomic per lock because between the compare and the extension the lock could change hands; the locks are in one
-- call only to travel together. Idempotent: a replay extends again.
local replies = {}
for i, lock in ipairs(KEYS) do
  local token, ttl = ARGV[2 * i - 1], ARGV[2 * i]
  local value = redis.pcall('GET', lock)
  local reply
  if value == token then
    reply = redis.pcall('PEXPIRE', lock, ttl)
    if type(reply) ~= 'number' then
      reply = {-2, reply.err}
    end
  elseif value == false then
    reply = 0
  elseif type(value) == 'string' or string.find(value.err, 'WRONGTYPE', 1, true) then
    reply = -1
  else
    reply = {-2, value.err}
  end
  replies[i] = reply
end
return replies
