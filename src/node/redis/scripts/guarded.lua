-- Part of a script: the fence that a guarded value was written with.
--
-- no_fence(stored) gives an error reply for what HGET or HMGET answered of a field that holds no fence, else nothing. Fences are
-- compared as text, since a Lua number is not exact above 2^53: each needs to be written in the one way.
local function no_fence(stored)
  local is_number = stored == '0' or string.find(stored, '^[1-9]%d*$')
  if not is_number or #stored > 19 or #stored == 19 and stored > '9223372036854775807' then
    return redis.error_reply('ERR the field fence of ' .. KEYS[1] .. ' holds no fence: delete the key, or correct the field')
  end
end

