-- Reads what locks hold, and for how long.
--
-- KEYS   the locks
-- Reply  for each lock: {the first 256 bytes of its value, PTTL in ms}; "" if the key is gone, nil if it is of another type
--
-- Writes nothing, so that the caller, which has the keys tracked, is notified only of what others do after it.
local replies = {}
for i, lock in ipairs(KEYS) do
  local value = redis.pcall('GETRANGE', lock, 0, 255)
  if type(value) ~= 'string' then
    if not string.find(value.err, 'WRONGTYPE', 1, true) then
      return value
    end
    value = false
  end
  replies[i] = {value, redis.call('PTTL', lock)}
end
return replies
