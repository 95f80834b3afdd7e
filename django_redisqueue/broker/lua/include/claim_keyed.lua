-- claim_keyed: claims jobs with lanes in the order of `keyed`. That is the order of claims while one share has all jobs
-- of the queue and no lane is or must be parked: then no scores are compared, and everything the lanes need is read and
-- written together. All other cases are left to claim_lanes.lua. A part of fast_path/slow_path.lua.
-- @first_use
-- @include "lanes"
-- @include "claim_heads"
-- The share that has all jobs of the queue, and its pass; nil if there are others, or parked or paused lanes.
local function only_share(queue)
  if redis.call('EXISTS', queue_key(queue, 'queued'), queue_key(queue, 'priority'), queue_key(queue, 'parked'),
      queue_key(queue, 'pauses')) > 0 then return nil end
  local found = redis.call('ZRANGE', queue_key(queue, 'shares'), 0, 1, 'WITHSCORES')
  if #found == 2 then return found[1], tonumber(found[2]) % BAND end
end

-- Plans which of these ids, the first of `keyed`, are claimed one after another: `of` has the lane of each. They belong
-- to the first ready lanes, which are in the order of their heads. For each lane, by its number: its first ids, up to
-- the one that stays, and how many of them are claimed.
local function plan_claim(queue, ids, ready_key)
  local rules, most, by_next = lanes(), #ids, {}
  local plan_start, prefix = rules.plan_start, rules.lane_key(queue, '')
  local ready, of, first_ids, counts = redis.call('ZRANGE', ready_key, 0, most - 1), {}, {}, {}
  local jobs, opened = 0, 0
  while jobs < most do
    local id = ids[jobs + 1]
    local lane = by_next[id] or opened + 1
    local name, found, count = ready[lane], first_ids[lane], (counts[lane] or 0) + 1
    if count == 1 then
      found = name and redis.pcall('ZRANGE', prefix .. name, '0', '1')
      if not found or found[1] ~= id then break end
    end
    if not plan_start(name, id) then break end
    jobs = jobs + 1
    of[jobs], counts[lane] = name, count
    if count == 1 then
      opened, first_ids[lane] = lane, found
    elseif count == 2 then  -- all that may follow
      local others = redis.call('ZRANGE', prefix .. name, 2, 3 + most - jobs)
      for place = 1, #others do found[2 + place] = others[place] end
    end
    local next_id = found[count + 1]
    if next_id then by_next[next_id] = lane end
  end
  for at = jobs + 1, most do ids[at] = nil end
  return { ids = ids, of = of, ready_key = ready_key, ready = ready, lanes = opened, first_ids = first_ids,
    counts = counts }
end

-- All jobs of the plan run, so the lanes are as they were read.
local function leave_as_planned(queue, plan)
  local rules, keyed, ready = lanes(), queue_key(queue, 'keyed'), plan.ready
  local prefix = rules.lane_key(queue, '')
  local emptied, gone, next_ids, back, left = {}, {}, {}, {}, 0
  for lane = 1, plan.lanes do
    local name, count = ready[lane], plan.counts[lane]
    local next_id = plan.first_ids[lane][count + 1]
    if next_id then
      redis.call('ZREMRANGEBYRANK', prefix .. name, '0', text(count - 1))
      left = left + 1
      next_ids[left], back[2 * left - 1], back[2 * left] = next_id, '', name
    else
      local at = lane - left
      emptied[at], gone[at] = prefix .. name, name
    end
  end
  if gone[1] then
    redis.call('DEL', unpack(emptied))
    redis.call('ZREM', plan.ready_key, unpack(gone))
  end
  if left > 0 then
    local scores = redis.call('ZMSCORE', keyed, unpack(next_ids))
    for at = 1, left do
      back[2 * at - 1] = scores[at] or rules.ready_score(queue, rules.lane_named(back[2 * at]))  -- keyed was edited
    end
    redis.call('ZADD', plan.ready_key, unpack(back))
  end
  redis.call('ZREMRANGEBYRANK', keyed, 0, #plan.ids - 1)
end

-- Some jobs do not run. Those that have ended may have brought others into these lanes.
local function leave_otherwise(queue, plan, taken, run)
  local rules, lane_of_id = lanes(), {}
  rules.forget_plan()
  for at = 1, taken do
    local id, name = plan.ids[at], plan.of[at]
    lane_of_id[id] = rules.lane_named(name)
    redis.call('ZREM', rules.lane_key(queue, name), id)
    redis.call('ZREM', queue_key(queue, 'keyed'), id)
  end
  for _, id in ipairs(run) do
    for _, key in ipairs(lane_of_id[id].limits) do rules.take(rules.limit_of(key), { id }) end
  end
  for lane = 1, plan.lanes do
    local name = plan.ready[lane]
    local score = rules.ready_score(queue, rules.lane_named(name))
    if score then
      redis.call('ZADD', plan.ready_key, score, name)
    else
      redis.call('ZREM', plan.ready_key, name)
    end
  end
end

local function claim_keyed(request, queue, claimed)
  local share, pass = only_share(queue)
  if not share then return end
  local rules, below = lanes(), (101 - tonumber(request.min_priority)) * BAND
  local wanted = math.min(request.jobs - batch.size, MAX_EXAMINED - batch.examined)
  local ids = redis.call('ZRANGEBYSCORE', queue_key(queue, 'keyed'), '-inf', '(' .. whole(below), 'LIMIT', 0, wanted)
  if not ids[1] then return end
  local plan = plan_claim(queue, ids, rules.ready_key(queue, share))
  if plan.lanes == 0 then return end
  local taken, run = claim_heads(request, queue, plan.ids, plan.of, claimed)
  if run == plan.ids then leave_as_planned(queue, plan) else leave_otherwise(queue, plan, taken, run) end
  rules.write_slots()
  rules.forget_plan()
  rules.call_lanes_of(plan.ready, plan.lanes)
  pass = pass + #run * rules.stride_of(share)
  if run[1] then rules.write_pass(queue, pass - rules.stride_of(share)) end
  rules.refresh_share(queue, share, pass)
end
