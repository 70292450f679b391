-- KEYS 1 a hash with the fields "value" and "fence"   ARGV 1 value   2 fence
-- Replies with the fence that is there now. If it is not yours, a later holder has written, and nothing was changed.
local seen, fence = redis.call('HGET', KEYS[1], 'fence') or '0', ARGV[2]
-- As texts: a number of Lua is not exact above 2^53.
if #fence < #seen or #fence == #seen and fence < seen then
  return seen
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', fence)
return fence
