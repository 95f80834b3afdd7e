-- chunk_lanes: lanes of chunk tasks, whose name has the part k:<task>:<value>. The number of k:<task> is
-- '<size>/<wait ms>'. A claim takes up to <size> jobs of such a lane at once, and no others: they are one call. A lane
-- that is not full waits: it is parked until the time in `limits:due` for its key. `chunks:waiting` is to such lanes
-- what `limits:waiting` is to limits.
local function chunk_numbers(lane)
  local size, wait_ms = string.match(common_number(string.match(lane.chunk, '^k:[^:]*')) or '', '^(%d+)/(%d+)$')
  return math.max(1, math.min(100, tonumber(size) or 1)), tonumber(wait_ms) or 0
end

-- A job has entered the lane; score: of its head. Returns whether the lane now waits.
local function wait_for_chunk(queue, lane, score)
  local size, wait_ms = chunk_numbers(lane)
  if wait_ms == 0 then return false end
  local parked_at = redis.call('HGET', queue_key(queue, 'parked'), lane.name)
  local count = redis.pcall('ZCARD', lane_key(queue, lane.name))
  if count == 1 and count < size and not parked_at then
    if not redis.pcall('ZSCORE', due_limits_key, lane.chunk) then due_at(lane.chunk, now + wait_ms) end
    park(queue, lane, { key = lane.chunk }, score)
    return true
  end
  if count == size and parked_at == lane.chunk then
    redis.pcall('ZREM', due_limits_key, lane.chunk)
    call_lanes(limit_of(lane.chunk), 100)
  end
  return false
end
