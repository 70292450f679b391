-- Part of a script: the value under a lock's key, lh1:<uuid>:<fence>@<label>.
--
-- Its first 40 bytes are the identity of an acquisition, and decide whose it is: the fence may be raised, and who undoes an
-- acquire knows none. A token is the same without the fence. The places are fixed, so no label looks like an identity or like
-- a fence.
--
-- None of ours has more than 255 bytes: scripts that answer with a value read 256 of it, and what has so many is another
-- program's, whatever it begins with. So a large value of theirs makes no large reply.

-- denial(value, token) takes what GET or GETRANGE answered. It gives nothing if that is of this token's acquisition, else what a script
-- replies: 0 the key is gone, -1 it holds something else, or an error.
local function denial(value, token)
  if value == false then
    return 0
  elseif type(value) == 'string' then
    return string.sub(value, 1, 40) ~= string.sub(token, 1, 40) and -1 or nil
  end
  return string.find(value.err, 'WRONGTYPE', 1, true) and -1 or value
end

-- with_fence(value, fence) gives the value of this one's acquisition, or of this token's, with this fence.
local function with_fence(value, fence)
  return string.sub(value, 1, 40) .. ':' .. fence .. (string.match(value, '@.*', 41) or '@')
end

-- fence_of(value) gives the text of the fence in a value of ours.
local function fence_of(value)
  return string.match(value, '^:(%d+)@', 41)
end

