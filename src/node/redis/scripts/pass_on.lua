-- Part of a script: parts with a lock that is known to be there.
--
-- Needs  keys.lua, value.lua, issue.lua, may_vote.lua and promote.lua before it
--
-- pass_on() grants it to the first of the queue who can be reached, and deletes it if there is nobody: so it is never
-- free while somebody waits, unless this server was started too short a time ago to grant anything. It gives 1, and
-- fails only where DEL fails.
local function pass_on()
  local waiting = redis.pcall('ZCARD', queue)
  if type(waiting) ~= 'number' or waiting == 0 then
    return redis.call('DEL', lock)
  end
  local _, count, is_full = false, 0, false
  local time = redis.pcall('TIME')
  if time[2] then
    local issued, now = issue(fence, redis.pcall('GET', fence), time)
    if issued then
      _, count, is_full = promote('', now, issued, 0)
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
      local channel = type(entry) == 'string' and string.match(entry, '^%d+|%d+|%d+|%d+|([^~].*)$')
      if channel and redis.pcall('PUBLISH', channel, 'next 0 ' .. token) ~= 0 then
        break
      end
    end
  end
  return deleted
end

