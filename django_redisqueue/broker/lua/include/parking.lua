-- parking: lanes leave the ready ones when a limit refuses them, and return when it allows again: one lane of each
-- waiting queue for each slot or token. Calling a lane reserves nothing: the first to claim wins, and a lane called in
-- vain parks again. Anything that may have left room at a limit calls the next lanes, so none is parked while its limit
-- allows a start and no other lane of its queue is about to use it.
local passes_of_limits_key = base .. 'limits:passes'
local function parked_key(queue, key) return queue_key(queue, 'parked:' .. key) end

local function due_at(key, instant)
  redis.pcall('ZADD', due_limits_key, whole(instant), key)
  wake_timer_if_first(due_limits_key, key)
end

local function park(queue, lane, limit, score)
  local place = limit.key .. ' ' .. queue
  local pass = (tonumber(redis.pcall('HGET', passes_of_limits_key, place)) or 0) + stride_of(lane.share)
  redis.pcall('ZADD', parked_key(queue, limit.key), whole(band_of(score) * BAND + pass), lane.name)
  redis.call('HSET', queue_key(queue, 'parked'), lane.name, limit.key)
  redis.pcall('ZADD', waiting_key(limit.key), 0, place)
  if limit.interval then due_at(limit.key, instant_of(limit, 0)) end
end

local function unpark(queue, lane, key)
  redis.pcall('ZREM', parked_key(queue, key), lane.name)
  redis.call('HDEL', queue_key(queue, 'parked'), lane.name)
  if redis.call('EXISTS', parked_key(queue, key)) == 1 then return end
  redis.pcall('ZREM', waiting_key(key), key .. ' ' .. queue)
  redis.pcall('HDEL', passes_of_limits_key, key .. ' ' .. queue)
end

-- In a queue with aging, the lane to call is the first by age.
local function include_first_by_age(queue, key, found)
  local aging = aging_of(queue)
  if not aging then return end
  local some = first_of_bands(key, '+inf')
  for _, one in ipairs(some) do one.id = head_of(queue, lane_named(one.name)) end
  local first = first_by_age(some, aging)
  for at = 1, #found, 2 do
    if not first or found[at] == first.name then return end
  end
  found[#found - 1], found[#found] = first.name, first.score
end

-- Returns whether there are more.
local function call_lanes_in(queue, limit, count)
  local found = redis.pcall('ZRANGE', parked_key(queue, limit.key), 0, count - 1, 'WITHSCORES')
  if not found[1] then redis.pcall('ZREM', waiting_key(limit.key), limit.key .. ' ' .. queue) end  -- edited manually
  if found[1] then include_first_by_age(queue, parked_key(queue, limit.key), found) end
  for at = 1, #found, 2 do
    local lane = lane_named(found[at])
    redis.pcall('HSET', passes_of_limits_key, limit.key .. ' ' .. queue, whole(tonumber(found[at + 1]) % BAND))
    unpark(queue, lane, limit.key)
    local head, score = head_of(queue, lane)
    if head then
      make_ready(queue, lane, score)
      wake(queue)
    end
  end
  return redis.call('EXISTS', parked_key(queue, limit.key)) == 1
end

-- Calls back up to `most` lanes of each queue, as far as the limit has room. Skips a queue with a broken key.
local function call_lanes(limit, most)
  local count = math.max(0, math.min(room_of(limit), most))
  if count == 0 and not limit.interval then return end
  local from, to = '[' .. limit.key .. ' ', '(' .. limit.key .. '!'
  for _, place in ipairs(redis.pcall('ZRANGEBYLEX', waiting_key(limit.key), from, to)) do
    local queue = string.match(place, ' (.*)$')
    if count > 0 and is_sound(queue) then call_lanes_in(queue, limit, count) end
  end
  if not limit.interval and not limit.is_chunk then return end
  if #redis.pcall('ZRANGEBYLEX', waiting_key(limit.key), from, to, 'LIMIT', 0, 1) > 0 then
    due_at(limit.key, limit.interval and instant_of(limit, count) or now + MS)
  end
end

local function someone_waits() return redis.call('EXISTS', waiting_limits_key) == 1 end

-- Calls lanes for limits that may have room: for each key, as many as its occurrences in the list.
local function call_waiting_lanes(keys)
  local counts = {}
  for _, key in ipairs(keys) do counts[key] = (counts[key] or 0) + 1 end
  for key, count in pairs(counts) do call_lanes(limit_of(key), count) end
end

-- The first `count` of these lanes were called, and have used the room or not.
local function call_lanes_of(names, count)
  if count == 0 or not someone_waits() then return end
  local keys = {}
  for at = 1, count do
    for _, key in ipairs(lane_named(names[at]).limits) do keys[#keys + 1] = key end
  end
  call_waiting_lanes(keys)
end

-- Rates that allow starts again; then up to 100 limits with changed numbers, which share 100 calls: each calls at least
-- one lane of a queue, whose start calls the next. Returns whether there are more.
local function call_due_lanes()
  for _, key in ipairs(redis.pcall('ZRANGEBYSCORE', due_limits_key, '-inf', now, 'LIMIT', 0, 100)) do
    redis.call('ZREM', due_limits_key, key)
    call_lanes(limit_of(key), 100)
  end
end
local function call_changed_lanes()
  local changed = redis.pcall('HGETALL', changed_limits_key)
  for at = 1, math.min(#changed, 20), 2 do
    local field, from = changed[at], changed[at + 1]
    local places = redis.pcall('ZRANGEBYLEX', waiting_key(field), from, '(' .. field .. ';', 'LIMIT', 0, 100)
    local most = math.ceil(100 / #places)
    for _, place in ipairs(places) do call_lanes(limit_of(string.match(place, '^%S*')), most) end
    if #places < 100 then
      redis.call('HDEL', changed_limits_key, field)
    else
      redis.call('HSET', changed_limits_key, field, '(' .. places[100])
    end
  end
  return redis.call('EXISTS', changed_limits_key) == 1
end
