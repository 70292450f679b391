-- How much memory the floors of fences take, estimated from a sample.
--
-- ARGV   1 about how many keys to sample   2 the prefix of the locks' names
-- Reply  {how many keys were sampled, the bytes of the floors among them, how many keys there are}
--
-- One call, so that not every key is sent to the client. This user may have no right to floors of names with another
-- prefix: reading them would be noted in the ACL log. A floor of ours that it may not read is an error, because without
-- it the sum would be too small. Writes nothing.

-- What MEMORY USAGE leaves out of a key: its places in the tables of keys and of expiries.
local PLACES = 60

local prefix = ARGV[2]
local keys, bytes = redis.call('SCAN', 0, 'COUNT', ARGV[1])[2], 0
for _, key in ipairs(keys) do
  local is_ours = string.sub(key, 1, #prefix) == prefix or string.sub(key, 1, #prefix + 1) == '{' .. prefix
  if is_ours and string.find(key, ':lht?:fence$') then
    local used = redis.call('MEMORY', 'USAGE', key)
    bytes = bytes + (used and used + PLACES or 0)
  end
end
return {#keys, bytes, redis.call('DBSIZE')}
