-- Takes a lock away from whoever holds it, unless it is no lock at all: for the first of its queue, or for nobody.
--
-- Needs  value.lua, issue.lua, may_vote.lua, promote.lua and pass_on.lua before it
-- KEYS   1 lock   2 fence   3 queue   4 wait
-- Reply  1 deleted or passed on, 0 there was none, or a WRONGTYPE error
--
-- Atomic because between the look at the type and the deletion the key could become somebody's data. A replay takes
-- the lock away from the next holder too: nothing tells it from a second wish.
if redis.call('GET', lock) then
  return pass_on()
end
return 0
