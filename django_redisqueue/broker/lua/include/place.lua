-- place: puts ids into a queue: at its tail, at its head (for released jobs), or among those due later.
-- A priority's score is its band and a counter, never the clock: equal scores would sort by random ids.
-- @include "wake"
local BAND, MIDDLE = 2 ^ 45, 2 ^ 44
local function band_of(score) return math.floor(tonumber(score) / BAND) end

-- The time that `when` means: '' now, '+<ms>' from now, or a time in ms; nil for anything else.
local function due_of(when)
  if when == '' then return now end
  local is_delay = string.sub(when, 1, 1) == '+'
  local ms = tonumber(is_delay and string.sub(when, 2) or when)
  if not ms or not (ms < 1e15) then return nil end  -- also for NaN
  return is_delay and now + ms or ms
end

local function next_score(queue, priority, at_head)
  local count = increment(queue_key(queue, 'meta'), at_head and 'head' or 'tail', 1)
  local offset = at_head and MIDDLE - count or MIDDLE + count
  return (100 - priority) * BAND + offset
end

local function place(queue, id, priority, at_head)
  priority = integer(priority) or 0
  if priority == 0 then
    redis.call(at_head and 'RPUSH' or 'LPUSH', queue_key(queue, 'queued'), id)
  else
    redis.call('ZADD', queue_key(queue, 'priority'), whole(next_score(queue, priority, at_head)), id)
  end
end

-- Puts an id among those due later.
local function postpone(queue, list, id, due)
  local key = queue_key(queue, list)
  redis.call('ZADD', key, whole(due), id)
  wake_timer_if_first(key, id)
end

-- Moves finished jobs that must stay to behind the newest, so that others are the oldest next time.
local function move_behind_newest(key, ids)
  if #ids == 0 then return end
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  local score, fields = whole(math.max(now, (tonumber(newest) or 0) + 1)), {}
  for _, id in ipairs(ids) do fields[#fields + 1], fields[#fields + 2] = score, id end
  redis.call('ZADD', key, unpack(fields))
end
