-- Admits a sharer if that is simple: no waiter is queued, and the lock is free or shared. Otherwise it is a poll.
--
-- Needs  permits.lua before it, and behind it what else poll.lua needs, and poll.lua
-- KEYS, ARGV, Reply  as poll.lua
--
-- Atomic and idempotent like poll.lua, which does the same. Defining a function takes as long as a call, so most
-- functions are behind this. If a sharer has expired, or one that is in takes several permits, it is a poll. As in
-- poll.lua, the first write is one that is refused when memory is out.
if ARGV[8] == '0' and redis.pcall('EXISTS', KEYS[3]) == 0 then
  local value, time = redis.pcall('GETRANGE', KEYS[1], 0, 255), redis.call('TIME')
  local now, span = time[1] .. string.sub('00000' .. time[2], -6), tonumber(ARGV[2])
  local now_ms = string.sub(now, 1, -4)
  local others = redis.pcall('ZCOUNT', KEYS[5], now_ms, '+inf')
  local later, more = string.format('%.0f', now_ms + span), beyond_one(ARGV[1])
  if type(others) == 'number' and value == '' and redis.call('EXISTS', KEYS[1]) == 0 then
    local floor, memory = redis.pcall('GET', KEYS[2]), ARGV[9]
    local is_number = type(floor) == 'string' and not string.find(floor, '%D')
    local is_earlier = not floor or is_number and #floor == #now and floor < now
    if memory ~= '0' and is_earlier and redis.pcall('SET', KEYS[2], now, 'PX', memory).ok then
      -- Before the lock's own key: without the right to this one, nothing would be left that keeps others out.
      redis.call('DEL', KEYS[5])
      redis.call('SET', KEYS[1], 'lh1:00000000-0000-0000-0000-000000000000:' .. now .. '@shared', 'PX', span)
      redis.call('ZADD', KEYS[5], later, ARGV[1])
      if more > 0 then
        redis.call('ZADD', KEYS[5], -more, '+')
      end
      redis.call('PEXPIRE', KEYS[5], span)
      return {1, now}
    end
  elseif type(others) == 'number' and others > 0 and others < tonumber(ARGV[10])
      and redis.call('ZCARD', KEYS[5]) == others and type(value) == 'string'
      and string.sub(value, 1, 41) == 'lh1:00000000-0000-0000-0000-000000000000:' then
    local fence = string.match(value, '^(%d+)@', 42)
    local changed = fence and redis.pcall('ZADD', KEYS[5], 'CH', later, ARGV[1])
    if type(changed) == 'number' then
      if more > 0 then
        redis.call('ZADD', KEYS[5], -more, '+')
      end
      local key, set = redis.call('PTTL', KEYS[1]), redis.call('PTTL', KEYS[5])
      if math.min(key, set) <= span then
        local longer = math.ceil(span * 4 / 3)
        redis.call('PEXPIRE', KEYS[1], string.format('%.0f', math.max(key, longer)))
        redis.call('PEXPIRE', KEYS[5], string.format('%.0f', math.max(set, longer)))
      elseif changed == 0 then
        -- A replay writes too, because its reply counts as a write.
        redis.call('PEXPIRE', KEYS[5], set)
      end
      return {1, fence}
    end
  end
end

