-- How much memory the floors of fences take, by a sample.
--
-- ARGV   1 how many keys to look at, about
-- Reply  {how many it has looked at, the bytes of the floors among them, how many keys there are}
--
-- One call, so that not every key travels to be looked at. A floor that this user may not read is an error: without it the sum
-- would be too small, and a look at each of the others would fill the ACL log. Writes nothing.

-- What MEMORY USAGE leaves out of a key: its places in the tables of keys and of expiries.
local PLACES = 60

local keys, bytes = redis.call('SCAN', 0, 'COUNT', ARGV[1])[2], 0
for _, key in ipairs(keys) do
  if string.find(key, ':lht?:fence$') then
    local used = redis.call('MEMORY', 'USAGE', key)
    bytes = bytes + (used and used + PLACES or 0)
  end
end
return {#keys, bytes, redis.call('DBSIZE')}
