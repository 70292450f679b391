-- combined.lua for a server of a cluster: the locks of one call are in many slots, so its keys are not declared, and each
-- command has one key.
--
-- Needs  value.lua and issue.lua before it
-- ARGV   1 n releases   2 m acquires   3 fence memory in ms; then for each release its lock, queue and value; then for each
--        acquire its lock, fence, token and TTL in ms
-- Reply  as combined.lua's. -2 also means that a key is on another server, or on its way to one
--
-- Atomic per lock like release.lua and acquire.lua. Every command but the first catches its error: an error of the
-- whole call has changed nothing, and a request that gets -2 has changed nothing that the lone script would not find
-- and repeat.
local n, m, memory, at = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], 3
local replies = {''}

-- Everything is read before the first write, so two requests for one lock are answered as by combined.lua.
local values, floors, time = {}, {}, redis.call('TIME')
for i = 1, n do
  values[i] = redis.pcall('GET', ARGV[at + 3 * i - 2])
end
for i = 1, m do
  floors[i] = redis.pcall('GET', ARGV[at + 3 * n + 4 * i - 2])
end

for i = 1, n do
  local lock, queue, reply = ARGV[at + 1], ARGV[at + 2], -2
  if values[i] == ARGV[at + 3] and redis.pcall('EXISTS', queue) == 0 and type(redis.pcall('DEL', lock)) == 'number' then
    reply = 1
  end
  replies[i + 1] = reply
  at = at + 3
end

if m > 0 then
  local drawn = time[1] .. string.sub('00000' .. time[2], -6)
  replies[1] = drawn
  for i = 1, m do
    local lock, fence, token, reply = ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], -2
    local floor = floors[i]
    if not floor or type(floor) == 'string' and #floor == #drawn and floor < drawn and not string.find(floor, '%D') then
      local value = string.sub(token, 1, 40) .. ':' .. drawn .. string.sub(token, 41)
      local taken = redis.pcall('SET', lock, value, 'NX', 'PX', ARGV[at + 4])
      if not taken then
        local holder, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.pcall('PTTL', lock)
        if type(holder) == 'string' and denial(holder, token) and type(pttl) == 'number' then
          reply = {0, pttl, holder}
        end
      elseif taken.ok then
        local option, expires = floor_expires(drawn, drawn, memory)
        if not option or redis.pcall('SET', fence, drawn, option, expires).ok then
          reply = 1
        else
          -- Without its floor, the next acquire could be issued the same fence.
          redis.pcall('DEL', lock)
        end
      end
    end
    replies[n + i + 1] = reply
    at = at + 4
  end
end
return replies
