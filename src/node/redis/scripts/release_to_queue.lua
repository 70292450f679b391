-- The end of a release of a lock that has a queue.
--
-- Needs  what release.lua says
witness_run, witnessed = ARGV[2], ARGV[3]
return pass_on()
