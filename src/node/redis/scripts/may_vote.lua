-- Part of a script: whether this server has been up for long enough to vote.
--
-- may_vote(delay) takes seconds and gives the server's run id, and the seconds that are still missing (0 or less: it
-- may); or an error reply as the third. Who forgot leases in a restart must not grant them again before they have run
-- out (safety rule 10's other half: Redlock's delayed restart). Uptime is the wall clock, counted in whole seconds, and
-- so up to one too many.
--
-- With a delay of 0 nothing depends on the answer, and a user without the right to INFO only goes without a run id.
local function may_vote(delay)
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    if tonumber(delay) > 0 then
      return nil, nil, redis.error_reply('ERR INFO, which tells how long this server has been up: ' .. info.err)
    end
    return false, 0
  end
  -- A server that keeps its uptime to itself has been up for no time.
  local up = string.match(info, 'uptime_in_seconds:(%d+)') or 0
  return string.match(info, 'run_id:(%w+)') or false, tonumber(delay) - tonumber(up)
end

