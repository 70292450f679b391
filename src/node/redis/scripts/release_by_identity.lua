-- The release of a lock whose value the caller does not know in full, or that the caller does not hold.
--
-- Needs  what release.lua says
local denied = denial(found, known, KEYS[1])
if denied then
  if denied == 0 then
    -- The server may have become a replica that does not have the key yet. Only a write shows that.
    redis.call('DEL', KEYS[1])
  end
  return denied
elseif not has_queue then
  return redis.call('DEL', KEYS[1])
end

