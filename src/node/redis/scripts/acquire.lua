-- Takes a free lock and draws its fence, in one step (rule 9).
--
-- KEYS   1 lock   2 fence
-- ARGV   1 token  2 TTL in ms
-- Reply  {1, fence}                     granted
--        {0, PTTL in ms, value, fence}  somebody holds it; value is nil for another type than a string
--
-- Atomic because a lock without a fence, or a fence without a lock, would let two holders share a number.
-- Idempotent per token: who holds the lock already is granted it again with the same fence (rule 5).
-- Everything that can be refused is read before the first write, so an error leaves nothing behind.
local lock, fence, token, ttl = KEYS[1], KEYS[2], ARGV[1], ARGV[2]

local stored = redis.call('GET', fence)
local floor = tonumber(stored or '0')
-- Above 2^53 a Lua number skips integers, and the next fence would not be larger.
if not floor or floor < 0 or floor >= 9007199254740992 then
  return redis.error_reply('ERR the fence key ' .. fence .. ' holds no fence: delete it to go on')
end
local time = redis.call('TIME')

local function draw()
  local now = time[1] * 1000000 + time[2]
  local drawn = math.max(floor + 1, now)
  -- 24 h after the fence's own time; a number argument keeps all 16 digits, tostring would not.
  local expires = math.floor(math.max(drawn, now) / 1000) + 86400000
  redis.call('SET', fence, string.format('%.0f', drawn), 'PXAT', string.format('%.0f', expires))
  return drawn
end

if redis.call('SET', lock, token, 'NX', 'PX', ttl) then
  return {1, draw()}
end

local value = redis.pcall('GET', lock)
if type(value) ~= 'string' then
  value = false
end
local pttl = redis.call('PTTL', lock)
if value == token then
  if pttl < tonumber(ttl) then
    redis.call('PEXPIRE', lock, ttl)
  end
  return {1, stored and floor or draw()}
end
return {0, pttl, value, stored}
