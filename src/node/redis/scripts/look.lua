-- Reads what locks hold, and for how long.
--
-- KEYS   the locks
-- Reply  for each lock: {value, PTTL in ms}; value is nil if the key is gone or of another type
--
-- Writes nothing, so that the caller, who has the keys watched, hears of nothing but what others do after it.
local replies = redis.call('MGET', unpack(KEYS))
for i, lock in ipairs(KEYS) do
  replies[i] = {replies[i], redis.call('PTTL', lock)}
end
return replies
