-- The release of a lock whose value the caller does not know all of, or which it does not have.
--
-- Needs  what release.lua says
local denied = denial(found, known, KEYS[1])
if denied then
  if denied == 0 then
    -- A server that has become a replica may not have the key yet. Only a write tells what it is.
    redis.call('DEL', KEYS[1])
  end
  return denied
elseif not has_queue then
  return redis.call('DEL', KEYS[1])
end

