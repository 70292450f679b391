-- Part of a script: goes on after somebody has parted with a lock that is known to be there, or with a share of one.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua, phase.lua and promote.lua before it
--
-- pass_on(count) is for a lock that so many share still. It lets those of the queue in who fit and can be reached, and
-- deletes the lock if nobody has it then: so it is never free while somebody waits, unless this server was started too
-- short a time ago to grant anything. It gives 1, and fails only where DEL fails.
local function pass_on(count)
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
  if count ~= 0 then
    return 1
  end
  local deleted = redis.call('DEL', lock)
  if is_full then
    -- Somebody else goes on with the work by knocking. Among the last there may be one who is not dead as well.
    for _, token in ipairs(redis.pcall('ZRANGE', queue, -16, -1)) do
      local entry = redis.pcall('HGET', wait, token)
      local channel = type(entry) == 'string' and string.match(entry, '^%d+|%d+|%d+|%d+|(.*)$')
      channel = channel and (string.match(channel, '^%d+%*(.*)$') or channel)
      if channel and string.sub(channel, 1, 1) ~= '~' and redis.pcall('PUBLISH', channel, 'next 0 ' .. token) ~= 0 then
        break
      end
    end
  end
  return deleted
end

