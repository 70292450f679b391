-- Issues the next fence of a lock where its floor is: the second step of an acquire while its slot is being moved.
--
-- Needs  issue.lua before it
-- KEYS   1 fence
-- ARGV   1 fence memory in ms
-- Reply  the fence
--
-- Atomic because two holders must not be issued one number. A replay issues a larger one.
local time = redis.call('TIME')
local issued, now = issue(KEYS[1], redis.pcall('GET', KEYS[1]), time)
if not issued then
  return now
end
local option, expires = floor_expires(issued, now, ARGV[1])
if option then
  redis.call('SET', KEYS[1], issued, option, expires)
end
return issued
