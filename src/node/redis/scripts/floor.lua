-- Part of a script: raises a lock's floor, so that every later fence is larger than this one (rule 10).
--
-- raise_floor(fence, to) takes the fence's key and the text of a fence, and gives nothing, or an error reply if the key holds
-- no fence. What is there already and larger stays. It expires 24 h after the fence's own time, or after now.
local function raise_floor(fence, to)
  local stored = redis.pcall('GET', fence)
  if type(stored) == 'table' then
    return stored
  end
  local floor, wanted = tonumber(stored or 0), tonumber(to)
  if not floor or floor ~= floor then
    return redis.error_reply('ERR the fence key ' .. fence .. ' holds no fence: delete it to go on')
  end
  if floor < wanted then
    local time = redis.call('TIME')
    local from = math.max(math.floor(wanted / 1000), time[1] * 1000)
    redis.call('SET', fence, to, 'PXAT', string.format('%.0f', from + 86400000))
  end
end

