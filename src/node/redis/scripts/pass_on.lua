-- Part of a script: continues after the release of a lock that is known to be there, or of a share of one.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, permits.lua, phase.lua and promote.lua before it
--
-- pass_on(count, ends) is for a lock of which `count` permits are still taken, the last of them until in `ends` ms if
-- waiters do not know that. It admits the waiters that fit and can be reached, and deletes the lock if it has no holder
-- then: so it is never free while a waiter is queued, unless this server has not been up for long enough to grant
-- anything. It returns 1, and fails only where DEL fails.
local function pass_on(count, ends)
  local waiting = redis.pcall('ZCARD', queue)
  if type(waiting) ~= 'number' or waiting == 0 then
    return count > 0 and 1 or redis.call('DEL', lock)
  end
  local _, is_full
  local time = redis.pcall('TIME')
  if time[2] then
    local issued, now = issue(fence, redis.pcall('GET', fence), time)
    if issued then
      _, count, is_full = promote('', now, issued, count)
    end
  end
  local deleted = count == 0 and redis.call('DEL', lock) or 1
  if is_full then
    -- Another waiter continues the work by polling. Among the last ones there may be one that is alive.
    for _, token in ipairs(redis.pcall('ZRANGE', queue, -16, -1)) do
      if calls(token, 0) then
        break
      end
    end
  elseif count > 0 and ends then
    calls_first(ends)
  end
  return deleted
end

