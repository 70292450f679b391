-- Part of a script: raises a lock's floor, so that every later fence is larger than this one (rule 10).
--
-- Needs  issue.lua and value.lua before it
--
-- raise_floor(fence, to, memory) takes the fence's key, the text of a fence, and how long the floor is kept, in ms. It
-- returns nil, or an error reply if the key holds no fence. A larger floor that is there already stays.
local function raise_floor(fence, to, memory)
  local stored = redis.pcall('GET', fence)
  if type(stored) == 'table' then
    return no_fence(fence, stored)
  end
  local floor, wanted = tonumber(stored or 0), tonumber(to)
  if not floor or floor ~= floor then
    return no_fence(fence, stored)
  end
  if floor < wanted then
    local time = redis.call('TIME')
    local option, expires = floor_expires(to, time[1] .. string.sub('00000' .. time[2], -6), memory)
    if option then
      redis.call('SET', fence, to, option, expires)
    end
  end
end

-- raised(value, to) returns the same value with at least this fence.
local function raised(value, to)
  local own = fence_of(value)
  return own and tonumber(own) >= tonumber(to) and value or with_fence(value, to)
end

