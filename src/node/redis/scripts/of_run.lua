-- Part of a script that only one run of one server knows: it replaces may_vote.lua.
--
-- The text contains the run id, and a server keeps no script over a restart (since Redis 7.0, and Valkey), so a server
-- that knows this script is that run. The caller sends the hash only if it has known the run for the restart delay, and
-- the text only on a link on which that run has answered.
local function may_vote()
  return 'RUN_ID', 0
end

