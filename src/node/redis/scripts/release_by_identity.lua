-- The release of a lock whose value the caller does not know all of, or which it does not have.
--
-- Needs  what release.lua says
local denied = denial(found, known)
if denied then
  return denied
elseif not has_queue then
  return redis.call('DEL', KEYS[1])
end

