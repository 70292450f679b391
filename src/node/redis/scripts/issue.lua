-- Part of a script: the next fence of a lock, and for how long its floor is kept.

-- no_fence(fence, stored) returns an error reply for a key that holds no fence, but what GET returned.
local function no_fence(fence, stored)
  local what = 'no fence'
  if type(stored) ~= 'string' then
    if not string.find(stored.err, 'WRONGTYPE', 1, true) then
      return stored
    end
    what = 'another type'
  end
  return redis.error_reply('ERR the fence key ' .. fence .. ' holds ' .. what .. ': delete it to go on')
end

-- issue(fence, stored, time, proposal) takes the fence's key, the replies of GET and TIME, and perhaps the number that
-- is wanted (or ""). It returns the text of the new fence, which is below neither the time nor the proposal, and the
-- time in µs. For a key that holds no fence it returns nil and an error reply, so that a script can stop before its
-- first write.
local function issue(fence, stored, time, proposal)
  -- Text throughout: a number would be printed and parsed again, which costs more than the calls.
  local now = time[1] .. string.sub('00000' .. time[2], -6)
  local issued = now
  if proposal and #proposal == #issued and proposal > issued then
    issued = proposal
  end
  if not stored or #stored == #issued and stored < issued and not string.find(stored, '%D') then
    return issued, now
  end
  if type(stored) ~= 'string' then
    return nil, no_fence(fence, stored)
  end
  -- This is not an earlier time. From 2^53 on a Lua number skips integers, and the next fence would not be larger; NaN
  -- is not a multiple of anything.
  local floor = tonumber(stored)
  if not floor or floor < 0 or floor % 1 ~= 0 or floor >= 9007199254740992 then
    return nil, no_fence(fence, stored)
  end
  if floor < tonumber(issued) then
    return issued, now
  end
  -- The clock is behind what was issued before. tostring would print 14 digits.
  return string.format('%.0f', floor + 1), now
end

-- floor_expires(issued, now, memory) returns how to store a fence: SET fence issued option expires. `now` is when it
-- was issued. The floor is kept for its memory, in ms, after the fence's own time, or after now. Without memory it is
-- kept until the clock has passed the fence; if it has, nothing is stored, and nil is returned. From Redis 7.2 on, and
-- in Valkey, TIME does not advance during a script, so there it has not passed what the same script has drawn.
local function floor_expires(issued, now, memory)
  if memory == '0' then
    local time = redis.call('TIME')
    now = time[1] .. string.sub('00000' .. time[2], -6)
    if #issued == #now and issued < now then
      return nil
    end
  elseif issued == now then
    return 'PX', memory
  elseif issued - now < 60000000 then
    -- A minute more is enough, and cheaper than computing the moment.
    return 'PX', memory + 60000
  end
  return 'PXAT', string.format('%.0f', math.floor(issued / 1000) + math.max(memory, 1))
end

