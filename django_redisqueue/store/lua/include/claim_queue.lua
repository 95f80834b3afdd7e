-- claim_queue: claims from one queue: first what fell due comes into it, then it goes by priority.
-- @include "claim_batch"
local BANDS = 2 ^ 45

-- Redis keeps a small ZSET as a list, and looks through all of it for each id that comes or goes: with two busy
-- children a sixth of its time. One member of over 64 bytes makes it a tree, which it stays when that is gone.
local MANY, LONG = 32, string.rep('-', 100)
local function note_processing(queue, claimed)
  if #claimed == 0 then return end
  local key = queue_key(queue, 'processing')
  redis.call('ZADD', key, unpack(claimed))
  if redis.call('ZCARD', key) > MANY and redis.call('OBJECT', 'ENCODING', key) ~= 'skiplist' then
    redis.call('ZADD', key, 0, LONG)
    redis.call('ZREM', key, LONG)
  end
end

-- As most have, which one command tells instead of four.
local function has_only_its_list(queue)
  local priority, scheduled = queue_key(queue, 'priority'), queue_key(queue, 'scheduled')
  return redis.call('EXISTS', priority, scheduled, queue_key(queue, 'retrying')) == 0
end

local function claim_queue(want, queue)
  local claimed, floor = {}, tonumber(want.min_priority)
  if has_only_its_list(queue) then
    if floor <= 0 then take_in_order(want, queue, claimed) end
    if batch.waits then full().set_aside() end
    return note_processing(queue, claimed)
  end
  full().promote_due(queue, 100)
  take_suspect(want, queue, claimed)
  local highest_score = '(' .. whole((101 - floor) * BANDS)
  local above = '(' .. whole(math.min(101, 101 - floor) * BANDS)  -- and those of tidy.lua
  take_by_priority(want, queue, '-inf', above, claimed)
  if floor <= 0 then
    take_in_order(want, queue, claimed)
    take_by_priority(want, queue, whole(101 * BANDS), highest_score, claimed)
  end
  if batch.waits then full().set_aside() end
  note_processing(queue, claimed)
end
