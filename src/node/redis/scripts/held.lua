-- Lists one page of the locks that tokens of ours hold.
--
-- ARGV   1 cursor   2 pattern   3 how many keys to scan
-- Reply  {the next cursor, which is 0 at the end, lock, lock, ...}
--
-- One call for a page, so that not every string of a large server is sent to the client. A key that this user may not
-- read is skipped. A user that may read none, without the right to the command, gets the error (Redis says "can't run
-- this command", Valkey "no permissions to run the 'getrange' command"). Writes nothing.
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', ARGV[3], 'TYPE', 'string')
local reply = {page[1]}
for _, lock in ipairs(page[2]) do
  local start = redis.pcall('GETRANGE', lock, 0, 3)
  if start == 'lh1:' then
    reply[#reply + 1] = lock
  elseif type(start) == 'table' and string.find(start.err, 'run th', 1, true) then
    return start
  end
end
return reply
