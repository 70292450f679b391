-- Writes a value unless a later holder has written before (fencing at the resource).
--
-- Needs  guarded.lua before it
-- KEYS   1 a hash with the fields "value" and "fence"
-- ARGV   1 value   2 fence, a decimal number without leading zeros
-- Reply  {1}        written
--        {0, fence}  refused: a later fence has been seen
--        or an error about a field "fence" that holds no fence
--
-- Atomic because between the compare and the write a later holder could write. Idempotent: the same fence may write
-- again.
local seen = redis.call('HGET', KEYS[1], 'fence')
local fence = ARGV[2]
local wrong = seen and no_fence(seen)
if wrong then
  return wrong
end
if seen and (#fence < #seen or (#fence == #seen and fence < seen)) then
  return {0, seen}
end
redis.call('HSET', KEYS[1], 'value', ARGV[1], 'fence', fence)
return {1}
