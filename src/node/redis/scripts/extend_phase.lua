-- Makes the key of a shared lock outlive a sharer: the first step of its renewal while the slot is being moved.
--
-- KEYS   1 lock
-- ARGV   1 fence of the phase   2 TTL in ms; 0 to leave the key's life as it is
-- Reply  1 it is that phase, 0 the key is gone, -1 it holds something else
--
-- Atomic because between the read and the write the phase could end. Idempotent: a replay extends again.
local value = redis.pcall('GET', KEYS[1])
local is_text = type(value) == 'string'
if not value then
  -- The server may have become a replica that does not have the key yet. Only a write shows that.
  redis.call('DEL', KEYS[1])
  return 0
elseif not is_text and not string.find(value.err, 'WRONGTYPE', 1, true) then
  return value
end
local expected = 'lh1:00000000-0000-0000-0000-000000000000:' .. ARGV[1] .. '@'
if not is_text or string.sub(value, 1, #expected) ~= expected then
  return -1
end
local left, span = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
local longer = left > span and left or math.ceil(span * 4 / 3)
-- It writes in any case, because its reply counts as a write.
if span == 0 and left < 0 then
  redis.call('SET', KEYS[1], value, 'KEEPTTL')
else
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(left, longer, 1)))
end
return 1
