-- Reads a guarded value with the fence that wrote it.
--
-- Needs  guarded.lua before it
-- KEYS   1 a hash with the fields "value" and "fence"
-- Reply  {0} nothing there, or {1, value, fence}, or an error about a field "fence" that holds no fence
--
-- Atomic so that the two belong together. Writes nothing.
local both = redis.call('HMGET', KEYS[1], 'value', 'fence')
if both[1] and both[2] then
  return no_fence(both[2]) or {1, both[1], both[2]}
end
return {0}
