
-- An acquire that is not as simple: a vote, a floor that is later than the clock, or a lock that is held.
--
-- Needs  what acquire.lua says
local reply, run_id, missing, refused
if delay then
  run_id, missing, refused = may_vote(delay, ARGV[6], ARGV[7])
  if refused then
    return refused
  elseif missing > 0 then
    reply = {2, missing}
  end
end

if not reply then
  if stored == nil then
    stored = redis.pcall('GET', fence)
  end
  -- `now` is the time, or an error reply.
  local issued, now = issue(fence, stored, time, ARGV[5])
  if not issued then
    return now
  end
  if taken == nil then
    taken = redis.call('SET', lock, with_fence(token, issued), 'NX', 'PX', ttl)
  end
  if taken then
    local option, expires = floor_expires(issued, now, memory)
    if option then
      redis.call('SET', fence, issued, option, expires)
    end
    reply = {1, issued}
  else
    local value, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.call('PTTL', lock)
    local denied = denial(value, token)
    if type(denied) == 'table' then
      return denied
    elseif denied then
      reply = {0, pttl, type(value) == 'string' and value or {0, redis.pcall('TYPE', lock).ok}}
    else
      -- A replay writes too, because its reply counts as a write.
      redis.call('PEXPIRE', lock, math.max(pttl, tonumber(ttl)))
      reply = {1, fence_of(value)}
    end
  end
end

if delay then
  reply[#reply + 1] = time[1] .. string.sub('00000' .. time[2], -6)
  reply[#reply + 1] = run_id
end
return reply
