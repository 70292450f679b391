-- Releases and acquires of many locks in one call, if each is the common case.
--
-- Needs  value.lua, issue.lua and may_vote.lua before it
-- KEYS   for n releases and m acquires: n locks, m fences, n queues, m locks
-- ARGV   1 n   2 fence memory in ms   3 for votes the restart delay in s, else ""; then the values of the n locks; the tokens
--        of the m acquires; their TTLs in ms; for votes also the fences to issue if they are large enough, or ""; and
--        perhaps a witness of this server's uptime: run id, seconds
-- Reply  {the time in µs, or "", and for each request, releases first:
--        1                       released, or granted with the time as its fence
--        {1, fence}              granted with another fence
--        {0, PTTL in ms, value}  it is held; value is its first 256 bytes
--        {2, seconds}            not up for long enough to vote, and the seconds that are missing
--        -2                      not as simple as that: ask for this one alone;
--        and for votes  the run id, or nil}
--
-- Atomic per lock like release.lua and acquire.lua; the locks share a call only to be batched.
-- Releases come first, so an acquire of the same lock finds it free.
-- Everything is read before the first write, and every call catches its error. So an error of the whole call has
-- changed nothing, and a request that gets -2 has changed nothing that the lone script would not find and repeat.
-- Fences are compared for one lock only, so many locks may have the same one: the time, or what a vote proposes.
local n, memory, delay = tonumber(ARGV[1]), ARGV[2], ARGV[3]
local m = #KEYS / 2 - n
local votes = m > 0 and delay ~= ''
local replies, queued, drawn, time = {''}, 0, nil, nil

-- The values of the locks, and the floors.
local read = redis.pcall('MGET', unpack(KEYS, 1, n + m))
if read.err then
  return read
end
if n > 0 then
  queued = redis.pcall('EXISTS', unpack(KEYS, n + m + 1, n + m + n))
  if type(queued) == 'table' then
    return queued
  end
end
local run_id, missing, refused = false, 0, nil
if votes then
  local witness = 3 + n + 3 * m
  run_id, missing, refused = may_vote(delay, ARGV[witness + 1], ARGV[witness + 2])
  if refused then
    return refused
  end
end
if m > 0 then
  time = redis.call('TIME')
  drawn = time[1] .. string.sub('00000' .. time[2], -6)
  replies[1] = drawn
  -- MGET returns a fence of another type as missing.
  local missing = {}
  for i = n + 1, n + m do
    if not read[i] then
      missing[#missing + 1] = KEYS[i]
    end
  end
  local strange = missing[1] and redis.pcall('EXISTS', unpack(missing)) or 0
  if type(strange) == 'table' then
    return strange
  elseif strange > 0 then
    for i = n + 1, n + m do
      read[i] = read[i] or 'perhaps no fence'
    end
  end
end

-- In a quorum each node may have raised the fence.
local function is_its_own(value, known)
  return value == known or value and delay ~= '' and string.sub(value, 1, 40) == string.sub(known, 1, 40)
end

local gone, places = {}, {}
for i = 1, n do
  replies[i + 1] = -2
  if is_its_own(read[i], ARGV[i + 3]) and (queued == 0 or redis.pcall('EXISTS', KEYS[n + m + i]) == 0) then
    gone[#gone + 1] = KEYS[i]
    places[#places + 1] = i + 1
  end
end
if gone[1] and type(redis.pcall('DEL', unpack(gone))) == 'number' then
  for _, place in ipairs(places) do
    replies[place] = 1
  end
end

for i = 1, m do
  local fence, lock, token, floor = KEYS[n + i], KEYS[2 * n + m + i], ARGV[n + i + 3], read[n + i]
  local reply, issued = -2, drawn
  if votes then
    local proposal = ARGV[n + 2 * m + i + 3]
    if #proposal == #drawn and proposal > drawn then
      issued = proposal
    end
  end
  if missing > 0 then
    reply = {2, missing}
  elseif not floor or #floor == #issued and floor < issued and not string.find(floor, '%D') then
    local value = string.sub(token, 1, 40) .. ':' .. issued .. string.sub(token, 41)
    local taken = redis.pcall('SET', lock, value, 'NX', 'PX', ARGV[n + m + i + 3])
    if not taken then
      local holder, pttl = redis.pcall('GETRANGE', lock, 0, 255), redis.pcall('PTTL', lock)
      if type(holder) == 'string' and denial(holder, token) and type(pttl) == 'number' then
        reply = {0, pttl, holder}
      end
    elseif taken.ok then
      local option, expires = floor_expires(issued, drawn, memory)
      if not option or redis.pcall('SET', fence, issued, option, expires).ok then
        reply = issued == drawn and 1 or {1, issued}
      else
        -- Without its floor, the next acquire could be issued the same fence.
        redis.pcall('DEL', lock)
      end
    end
  end
  replies[n + i + 1] = reply
end
if votes then
  replies[n + m + 2] = run_id
end
return replies
