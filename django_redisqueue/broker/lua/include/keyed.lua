-- keyed: a job with a lane enters its queue or leaves it before its turn.
local function enter_lane(queue, id, score, text)
  local lane = lane_of(text)
  score = whole(score)
  redis.call('ZADD', queue_key(queue, 'keyed'), score, id)
  redis.pcall('ZADD', lane_key(queue, lane.name), score, id)
  redis.call('HSET', queue_key(queue, 'meta'), 'keyed', 1)
  local _, first = head_of(queue, lane)
  if lane.chunk and wait_for_chunk(queue, lane, first) or first ~= tonumber(score) then return end
  local key = redis.call('HGET', queue_key(queue, 'parked'), lane.name)
  if key then
    local parked = parked_key(queue, key)
    local known = tonumber(redis.pcall('ZSCORE', parked, lane.name) or 0)
    redis.pcall('ZADD', parked, whole(band_of(first) * BAND + known % BAND), lane.name)
  else
    make_ready(queue, lane, first)
  end
end

-- A queued job leaves its lane without being claimed.
local function leave_lane(queue, id, text)
  local lane = lane_of(text)
  local before = head_of(queue, lane)
  redis.call('ZREM', queue_key(queue, 'keyed'), id)
  redis.pcall('ZREM', lane_key(queue, lane.name), id)
  if before ~= id then return end
  local head, score = head_of(queue, lane)
  local key = redis.call('HGET', queue_key(queue, 'parked'), lane.name)
  if head and key then return enter_lane(queue, head, score, text) end
  if head then return make_ready(queue, lane, score) end
  if key then
    unpark(queue, lane, key)
  else
    redis.pcall('ZREM', ready_key(queue, lane.share), lane.name)
    refresh_share(queue, lane.share)
  end
  call_lanes_of({ lane.name }, 1)
end
