-- Part of a script: the value under a lock's key, lh1:<uuid>:<fence>@<label>.
--
-- Its first 40 bytes are the identity of an acquisition, and decide whose it is: the fence may be raised, and a client
-- that undoes an acquire knows none. A token is the same without the fence. The positions are fixed, so no label looks
-- like an identity or like a fence.
--
-- Our values have at most 255 bytes: scripts that reply with a value read 256 of it, and a value with that many is
-- another program's, whatever it begins with. So a large value of theirs makes no large reply.

-- denial(value, token, lock) takes the reply of GET or GETRANGE. It returns nil if that is of this token's acquisition,
-- else what a script replies: 0 the key is gone, -1 it holds something else, or an error. For a holder, which passes
-- the lock, also {-3, text}: the lock was taken from this acquisition by force, and this text was left. That key is
-- read only for holders, so it is not among the declared ones; it is in the slot of the lock.
local function denial(value, token, lock)
  local identity = string.sub(token, 1, 40)
  if type(value) == 'string' and string.sub(value, 1, 40) == identity then
    return nil
  elseif type(value) == 'table' and not string.find(value.err, 'WRONGTYPE', 1, true) then
    return value
  elseif lock then
    local forced = string.find(lock, '^[^{]*{[^}]+}') and lock .. ':lht:forced' or '{' .. lock .. '}:lh:forced'
    local left = redis.pcall('GETRANGE', forced, 0, 511)
    if type(left) == 'string' and string.sub(left, 1, 40) == identity then
      return {-3, string.sub(left, 41)}
    end
  end
  return value and -1 or 0
end

-- with_fence(value, fence) returns the value of the same acquisition as this value or token, with this fence.
local function with_fence(value, fence)
  return string.sub(value, 1, 40) .. ':' .. fence .. (string.match(value, '@.*', 41) or '@')
end

-- fence_of(value) returns the text of the fence in a value of ours.
local function fence_of(value)
  return string.match(value, '^:(%d+)@', 41)
end

