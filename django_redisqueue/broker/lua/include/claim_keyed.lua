-- claim_keyed: claims jobs with lanes in the order of `keyed`. That is the order of claims while one share has all
-- jobs of the queue and no lane is parked or has to be: then no scores are compared, and what the lanes need is read
-- and written together. All others are left to claim_lanes.lua. A part of fast_path/slow_path.lua.
-- @first_use
-- @include "lanes"
-- @include "claim_heads"
-- The share that has all jobs of the queue, and its pass; nil when there are others, or parked or paused lanes.
local function only_share(queue)
  if redis.call('EXISTS', queue_key(queue, 'queued'), queue_key(queue, 'priority'), queue_key(queue, 'parked'),
      queue_key(queue, 'pauses')) > 0 then return nil end
  local found = redis.call('ZRANGE', queue_key(queue, 'shares'), 0, 1, 'WITHSCORES')
  if #found == 2 then return found[1], tonumber(found[2]) % BAND end
end

-- Which of these ids, the first of `keyed`, can be claimed one after the other; the lane of each; and the first ids of
-- each of those lanes, up to the one that stays. Ready lanes stand in the order of their heads.
local function plan_claim(queue, share, ids)
  local rules, most, planned, of, opened, by_next = lanes(), #ids, {}, {}, {}, {}
  local ready = redis.call('ZRANGE', rules.ready_key(queue, share), 0, most - 1)
  for at = 1, most do
    local id = ids[at]
    local heads = by_next[id]
    if not heads then
      local name = ready[#opened + 1]
      heads = name and redis.pcall('ZRANGE', rules.lane_key(queue, name), '0', '1')
      if not heads or heads[1] ~= id then break end
      heads.lane, heads.count = rules.lane_named(name), 0
    end
    local lane, count = heads.lane, heads.count + 1
    if not rules.take_room(lane) then break end
    if count == 1 then opened[#opened + 1] = heads end
    planned[at], of[at], heads.count = id, lane, count
    if count == 2 then  -- all that may follow
      local others = redis.call('ZRANGE', rules.lane_key(queue, lane.name), 2, 2 + most - at)
      for place = 1, #others do heads[2 + place] = others[place] end
    end
    local next_id = heads[count + 1]
    if next_id then by_next[next_id] = heads end
  end
  return planned, of, opened
end

-- All of the plan runs, so the lanes are as they were read.
local function leave_as_planned(queue, share, opened, jobs)
  local rules, keyed = lanes(), queue_key(queue, 'keyed')
  local ready = rules.ready_key(queue, share)
  local emptied, gone, next_ids, back = {}, {}, {}, {}
  for _, heads in ipairs(opened) do
    local name, next_id = heads.lane.name, heads[heads.count + 1]
    if next_id then
      redis.call('ZREM', rules.lane_key(queue, name), unpack(heads, 1, heads.count))
      next_ids[#next_ids + 1] = next_id
      back[2 * #next_ids - 1], back[2 * #next_ids] = false, name
    else
      emptied[#emptied + 1], gone[#gone + 1] = rules.lane_key(queue, name), name
    end
  end
  if gone[1] then
    redis.call('DEL', unpack(emptied))
    redis.call('ZREM', ready, unpack(gone))
  end
  if next_ids[1] then
    for at, score in ipairs(redis.call('ZMSCORE', keyed, unpack(next_ids))) do
      back[2 * at - 1] = score or rules.ready_score(queue, rules.lane_named(back[2 * at]))  -- keyed was edited
    end
    redis.call('ZADD', ready, unpack(back))
  end
  redis.call('ZREMRANGEBYRANK', keyed, 0, jobs - 1)
end

-- Some do not run. Those that have ended may have brought others into these lanes.
local function leave_otherwise(queue, share, opened, ids, of, taken)
  local rules = lanes()
  for at = 1, taken do
    redis.call('ZREM', rules.lane_key(queue, of[at].name), ids[at])
    redis.call('ZREM', queue_key(queue, 'keyed'), ids[at])
  end
  for _, heads in ipairs(opened) do
    local score = rules.ready_score(queue, heads.lane)
    if score then
      redis.call('ZADD', rules.ready_key(queue, share), score, heads.lane.name)
    else
      redis.call('ZREM', rules.ready_key(queue, share), heads.lane.name)
    end
  end
end

local function hold_slots_of(run, ids, of)
  local lane_of_id = {}
  for at = 1, #ids do lane_of_id[ids[at]] = of[at] end
  for _, id in ipairs(run) do lanes().hold_slots(lane_of_id[id], id) end
end

local function claim_keyed(request, queue, claimed)
  local share, pass = only_share(queue)
  if not share then return end
  local rules, below = lanes(), (101 - tonumber(request.min_priority)) * BAND
  local wanted = math.min(request.jobs - batch.size, MAX_EXAMINED - batch.examined)
  local ids = redis.call('ZRANGEBYSCORE', queue_key(queue, 'keyed'), '-inf', '(' .. whole(below), 'LIMIT', 0, wanted)
  local planned, of, opened = plan_claim(queue, share, ids)
  if not planned[1] then return end
  local taken, run = claim_heads(request, queue, planned, of, claimed)
  if run == planned then
    for at = 1, taken do rules.hold_slots(of[at], planned[at]) end
    leave_as_planned(queue, share, opened, taken)
  else
    hold_slots_of(run, planned, of)
    leave_otherwise(queue, share, opened, planned, of, taken)
  end
  rules.write_slots()
  local some = {}
  for at, heads in ipairs(opened) do
    some[at] = heads.lane
    if run ~= planned then rules.forget_limits(heads.lane) end
  end
  rules.call_lanes_of(some)
  pass = pass + #run * rules.stride_of(share)
  if run[1] then rules.write_pass(queue, pass - rules.stride_of(share)) end
  rules.refresh_share(queue, share, pass)
end
