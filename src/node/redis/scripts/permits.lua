-- Part of a script: how many permits a sharer takes.
--
-- A token says how many, if more than one: "lh1:<uuid>*<permits>@<label>". What all members of a set of sharers take
-- beyond one each is the negative score of the member "+". No range of times includes that score, and it changes only
-- with the members. So permits are counted in O(log n) of the sharers, however many each takes.

-- beyond_one(token) returns how many permits a sharer takes beyond the first.
local function beyond_one(token)
  return string.sub(token, 41, 41) == '*' and (tonumber(string.match(token, '^%d+', 42)) or 1) - 1 or 0
end

-- gives_back(set, more): members were removed that took that many permits beyond one each.
local function gives_back(set, more)
  if more > 0 and (tonumber(redis.call('ZADD', set, 'XX', 'INCR', more, '+')) or -1) >= 0 then
    redis.call('ZREM', set, '+')
  end
end

-- removes(set, token) takes a sharer out of a set. It returns the reply of ZREM, or an error reply.
local function removes(set, token)
  local removed = redis.pcall('ZREM', set, token)
  if removed == 1 then
    gives_back(set, beyond_one(token))
  end
  return removed
end

