-- Does what an acquire, a renewal and a release need, and changes nothing: what would refuse one refuses this.
--
-- Needs  may_vote.lua before it
-- KEYS   1 a key that is never written
-- ARGV   1 restart delay in s; and perhaps a witness of this server's uptime  2 run id   3 seconds
-- Reply  {1} it could grant a lock now, {2, seconds, run id (or nil)} not up for long enough, and the seconds missing
--
-- A SET with XX needs the rights, the memory, the replicas and the disk that every SET needs. Without the key it writes
-- nothing, so a replay does no harm.
if ARGV[1] ~= '0' then
  local run_id, missing, refused = may_vote(ARGV[1], ARGV[2], ARGV[3])
  if refused then
    return refused
  elseif missing > 0 then
    return {2, missing, run_id}
  end
end
redis.call('TIME')
redis.call('GET', KEYS[1])
redis.call('SET', KEYS[1], '', 'XX', 'PX', 1)
for _, command in ipairs({'MGET', 'EXISTS', 'PTTL', 'DEL'}) do
  redis.call(command, KEYS[1])
end
redis.call('GETRANGE', KEYS[1], 0, 0)
redis.call('PEXPIRE', KEYS[1], 1)
return {1}
