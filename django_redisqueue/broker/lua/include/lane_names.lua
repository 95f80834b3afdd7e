-- lane_names: queued jobs with limits or a share of their queue. A job's field `lane` begins with the name of its lane,
--   <share>|<limit key>|<limit key>...   a limit key: <kind>:<limit>:<value>, kind c (concurrency), r (rate) or k
--   (chunk_lanes.lua)
-- and continues with words <field>=<number> (limits.lua). No part contains spaces; client/policies.py encodes them.
-- Of a queue: `keyed` has all these ids in order; `lane:<name>` those of one lane; `lanes:<share>` the lanes of a share
-- that are ready, by their heads; `shares` the shares with ready lanes, by the priority of the first head and the pass
-- of the share. A lane that a limit has refused is in no `lanes:<share>` but in `parked` (limits.lua).
-- A pass grows by STRIDE / weight for each job that a share starts; the share with the lowest pass is next. `passes`
-- keeps the pass of a share without ready lanes while it is ahead of the queue's, so that returning earns no credit.
local STRIDE = 100
local limits_key, slots_key, waiting_limits_key = base .. 'limits', base .. 'slots', base .. 'limits:waiting'
local function waiting_key(limit_key)  -- chunks and pauses apart, because no job's end calls their lanes
  return string.find(limit_key, '^[kp]:') and base .. 'chunks:waiting' or waiting_limits_key
end
local changed_limits_key, due_limits_key = base .. 'limits:changed', base .. 'limits:due'
local function lane_key(queue, name) return base .. 'q:' .. queue .. ':lane:' .. name end
local function ready_key(queue, share) return queue_key(queue, 'lanes:' .. share) end

-- True while a job may be in a lane of the queue, even if one of these keys was deleted manually.
local function has_lanes(queue)
  return redis.call('EXISTS', queue_key(queue, 'keyed'), queue_key(queue, 'shares'), queue_key(queue, 'parked')) > 0
end

-- Most scripts meet many lanes, so this takes their names apart without patterns, which cost more.
local lanes_by_name = {}
local function lane_named(name)
  local lane = lanes_by_name[name]
  if lane then return lane end
  local find, sub, limits, chunk = string.find, string.sub, {}, nil
  local bar = find(name, '|', 1, true)
  local share = bar and sub(name, 1, bar - 1) or name
  while bar do
    local next_bar = find(name, '|', bar + 1, true)
    local key = sub(name, bar + 1, next_bar and next_bar - 1 or -1)
    if string.byte(key) == 107 then chunk = key else limits[#limits + 1] = key end  -- 'k'
    bar = next_bar
  end
  lane = { name = name, share = share, limits = limits, chunk = chunk }
  lanes_by_name[name] = lane
  return lane
end
local function lane_of(text) return text and lane_named(string.match(text, '^%S*')) end

local function head_of(queue, lane)
  local found = redis.pcall('ZRANGE', lane_key(queue, lane.name), 0, 0, 'WITHSCORES')
  return found[1], tonumber(found[2])
end

-- The score with which a lane is ready; nil if it is empty or parked.
local function ready_score(queue, lane)
  local _, score = head_of(queue, lane)
  return score and redis.call('HEXISTS', queue_key(queue, 'parked'), lane.name) == 0 and score or nil
end

local queue_passes = {}
local function queue_pass(queue)
  if not queue_passes[queue] then
    queue_passes[queue] = integer(redis.call('HGET', queue_key(queue, 'meta'), 'pass')) or 0
  end
  return queue_passes[queue]
end
local function write_pass(queue, pass)
  if pass <= queue_pass(queue) then return end
  queue_passes[queue] = pass
  redis.call('HSET', queue_key(queue, 'meta'), 'pass', whole(pass))
end

-- Puts a share among those with ready lanes; pass: its own, if the caller knows it.
local function refresh_share(queue, share, pass)
  local key = queue_key(queue, 'shares')
  local first = redis.pcall('ZRANGE', ready_key(queue, share), 0, 0, 'WITHSCORES')
  if not pass then
    local score = tonumber(redis.call('ZSCORE', key, share) or nil)
    pass = score and score % BAND
      or math.max(tonumber(redis.call('ZSCORE', queue_key(queue, 'passes'), share) or 0), queue_pass(queue))
  end
  if first[2] then
    redis.call('ZADD', key, whole(band_of(first[2]) * BAND + pass), share)
  else
    redis.call('ZREM', key, share)
    redis.call('ZADD', queue_key(queue, 'passes'), whole(pass), share)
    redis.call('ZREMRANGEBYSCORE', queue_key(queue, 'passes'), '-inf', whole(queue_pass(queue)))
  end
end

-- Puts a lane among the ready ones; score: of its head.
local function make_ready(queue, lane, score)
  redis.pcall('ZADD', ready_key(queue, lane.share), whole(score), lane.name)
  refresh_share(queue, lane.share)
end
