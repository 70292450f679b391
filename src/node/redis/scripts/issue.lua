-- Part of a script: the next fence of a lock.
--
-- issue(fence, stored, time, proposal) takes the fence's key, what GET and TIME answered, and perhaps the number that is
-- wanted (or ""). It gives the text of the new fence, which is never below the proposal, and how to store it: SET fence
-- issued option expires. For a key that holds no fence it gives nil and an error reply, so that a script can stop before
-- its first write.
local function issue(fence, stored, time, proposal)
  -- Text all the way: a number would be printed and parsed again, which costs more than the calls. The fence's own
  -- 24 h are 24 h from now, when it is the time.
  local issued = time[1] .. string.sub('00000' .. time[2], -6)
  local option, expires = 'PX', '86400000'
  if proposal and #proposal == #issued and proposal > issued then
    issued = proposal
    if string.sub(issued, 1, 10) - time[1] < 60 then
      -- A minute more is enough, and cheaper than to compute the moment.
      expires = '86460000'
    else
      option, expires = 'PXAT', string.format('%.0f', math.floor(tonumber(issued) / 1000) + 86400000)
    end
  end
  if not stored or #stored == #issued and stored < issued and not string.find(stored, '%D') then
    return issued, option, expires
  end
  if type(stored) ~= 'string' then
    return nil, stored
  end
  -- Something else than an earlier time. From 2^53 on a Lua number skips integers, and the next fence would not be
  -- larger; NaN is no multiple of anything.
  local floor = tonumber(stored)
  if not floor or floor < 0 or floor % 1 ~= 0 or floor >= 9007199254740992 then
    return nil, redis.error_reply('ERR the fence key ' .. fence .. ' holds no fence: delete it to go on')
  end
  if floor < tonumber(issued) then
    return issued, option, expires
  end
  -- The clock stands behind what was issued before. tostring would print 14 digits.
  return string.format('%.0f', floor + 1), 'PXAT', string.format('%.0f', math.floor((floor + 1) / 1000) + 86400000)
end

