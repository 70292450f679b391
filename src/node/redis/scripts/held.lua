-- One page of the locks that tokens of ours hold.
--
-- ARGV   1 cursor   2 pattern   3 how many keys to look at
-- Reply  {the next cursor, which is 0 at the end, lock, lock, ...}
--
-- One call for a page, so that not every string on a server that has many travels to be looked at. What this user may not
-- read is nothing to it. Writes nothing.
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3], 'TYPE', 'string')
local reply = {page[1]}
for _, lock in ipairs(page[2]) do
  if redis.pcall('GETRANGE', lock, 0, 3) == 'lh1:' then
    reply[#reply + 1] = lock
  end
end
return reply
