-- Reads who holds a lock.
--
-- KEYS   1 lock
-- Reply  {0}                     it is free
--        {1, PTTL in ms, value}  it is held; value is as in acquire.lua
--
-- Atomic so that the value and its TTL belong together. Writes nothing.
local value = redis.pcall('GETRANGE', KEYS[1], 0, 255)
if value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
  return {0}
elseif type(value) ~= 'string' then
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  end
  value = {0, redis.pcall('TYPE', KEYS[1]).ok}
end
return {1, redis.call('PTTL', KEYS[1]), value}
