-- Part of a script: whether this server has been up for long enough to vote.
--
-- may_vote(delay, run, known) takes seconds, and returns the server's run id and the seconds that are still missing (0
-- or less: it may vote), or an error reply as the third. A server that forgot leases in a restart must not grant them
-- again before they have expired (Redlock's delayed restart). Uptime is wall clock, in whole seconds: up to one too
-- many.
--
-- `run` and `known` are the caller's witness, or nil: the run id of an earlier reply, and for how many whole seconds
-- the caller has had that reply. This server has been up for at least as long if that run is its own. The witness of
-- another run counts for nothing: a restart ends it. After the wall clock was set back, only a witness counts.
--
-- With a delay of 0 nothing depends on the answer, and a user without the right to INFO only goes without a run id.
local function may_vote(delay, run, known)
  delay = tonumber(delay)
  local info = redis.pcall('INFO', 'server')
  if type(info) ~= 'string' then
    if delay > 0 then
      return nil, nil, redis.error_reply('ERR INFO, which tells how long this server has been up: ' .. info.err)
    end
    return false, 0
  end
  -- Plain searches: patterns that are not anchored would cost more than the rest of the script.
  local at = string.find(info, 'run_id:', 1, true)
  local run_id = at and string.match(info, '^%w+', at + 7) or false
  if delay <= 0 then
    return run_id, 0
  end
  local up = string.find(info, 'uptime_in_seconds:', 1, true)
  -- A server that does not report its uptime counts as just started. So does one whose uptime is negative.
  up = tonumber(up and string.match(info, '^%d+', up + 18) or 0)
  if run_id and run_id == run then
    up = math.max(up, tonumber(known) or 0)
  end
  return run_id, delay - up
end

