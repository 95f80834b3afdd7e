-- claim_aside: where jobs that have taken a worker down before (recoveries > 0) wait for a child that holds nothing,
-- a part of full.lua. Each runs alone, and others must not wait for that: a claim that meets one while its child has
-- other jobs moves it out of their way, behind the lowest priority of its queue's ZSET, where only claims by children
-- that hold nothing look. There they stand by priority, and then in the order in which they were met.
-- @include "place"
local ASIDE, RANK = 202 * BAND, 2 ^ 36

-- Remembers a job that the claim has met: ids that leave their list are removed first.
local function meet_suspect(queue, id)
  local priority = integer(read(id, 'priority')[1]) or 0
  batch.aside[#batch.aside + 1] = { queue, id, math.max(-100, math.min(100, priority)) }
  batch.waits = true
end

local function set_aside()
  for _, suspect in ipairs(batch.aside) do
    local queue, id, priority = unpack(suspect)
    local score = ASIDE + (100 - priority) * RANK + tally(queue_key(queue, 'meta'), 'tail', 1)
    redis.call('ZADD', queue_key(queue, 'priority'), whole(score), id)
  end
  batch.aside = {}
end

-- The first that waits aside, unless the queue has jobs of a higher priority than its.
local function first_aside(queue, min_priority)
  local key = queue_key(queue, 'priority')
  local below = '(' .. whole(ASIDE + (101 - tonumber(min_priority)) * RANK)
  local first = redis.call('ZRANGEBYSCORE', key, whole(ASIDE), below, 'WITHSCORES', 'LIMIT', 0, 1)
  if not first[1] then return nil end
  local priority = 100 - math.floor((tonumber(first[2]) - ASIDE) / RANK)
  if priority < 0 and redis.call('EXISTS', queue_key(queue, 'queued')) == 1 then return nil end
  local above = '(' .. whole((100 - priority) * BAND)
  if redis.call('ZRANGEBYSCORE', key, '-inf', above, 'LIMIT', 0, 1)[1] then return nil end
  return first[1]
end
