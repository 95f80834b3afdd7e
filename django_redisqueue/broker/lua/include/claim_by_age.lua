-- claim_by_age: claims from a queue with the option AGING (aging.lua), one turn after another. The candidates are, for
-- each priority, a job without a lane or one of the share with the lowest pass. A part of fast_path/slow_path.lua.
-- @first_use
-- @include "claim_lanes"
local MAX_BANDS = 1000  -- that a call compares; beyond them it follows the order of priorities
local bands = 0
local function first_below(key, below)
  if bands > MAX_BANDS then return {} end
  local found = lanes().first_of_bands(key, '(' .. whole(below))
  bands = bands + #found + 1
  return found
end

-- The first jobs without lanes, by band.
local function next_without_lanes(queue, below, pass)
  local found, list = {}, queue_key(queue, 'queued')
  local tail = below > 100 * BAND and redis.call('LINDEX', list, -1)
  if tail then found[100] = { id = tail, band = 100, pass = pass, is_in_list = true } end
  for _, one in ipairs(first_below(queue_key(queue, 'priority'), below)) do
    found[one.band] = { id = one.name, band = one.band, pass = pass, score = one.score }
  end
  return found
end

-- Jobs without lanes are one share, after others with the same pass.
local function has_turn_before(job, other)
  if job.pass ~= other.pass then return job.pass < other.pass end
  if job.name ~= other.name then return job.name < (other.name or '\127') end
  return tonumber(job.score) < tonumber(other.score)
end

-- A share's next jobs of all priorities: those of its first lanes, whose heads may hide others.
local function add_share(queue, share, below, found)
  for _, lane in ipairs(first_below(lanes().ready_key(queue, share.name), below)) do
    for _, job in ipairs(first_below(lanes().lane_key(queue, lane.name), below)) do
      job.id, job.name, job.pass, job.lane = job.name, share.name, share.score % BAND, lane
      if not found[job.band] or has_turn_before(job, found[job.band]) then found[job.band] = job end
    end
  end
end

local function next_of_bands(queue, below, has_lanes)
  local found, all = next_without_lanes(queue, below, has_lanes and pass_of_others(queue)), {}
  for _, share in ipairs(has_lanes and first_below(queue_key(queue, 'shares'), below) or {}) do
    add_share(queue, share, below, found)
  end
  for _, one in pairs(found) do all[#all + 1] = one end
  return all
end

-- The first jobs of the same priority that come before all others, at most `most`.
local function claim_run(request, queue, first, aging, second, most, claimed)
  local key, ids = queue_key(queue, first.is_in_list and 'queued' or 'priority'), {}
  if first.is_in_list then
    local tail = redis.call('LRANGE', key, -most, -1)
    for at = #tail, 1, -1 do ids[#ids + 1] = tail[at] end
  else
    ids = redis.call('ZRANGEBYSCORE', key, first.score, '(' .. whole((first.band + 1) * BAND), 'LIMIT', 0, most)
  end
  local run, aged_instant = { ids[1] }, lanes().aged_instant
  while ids[#run + 1] and (second == math.huge or aged_instant(ids[#run + 1], first.band, aging) < second) do
    run[#run + 1] = ids[#run + 1]
  end
  local taken = claim_ids(request, queue, run, claimed)
  if taken > 0 and first.is_in_list then
    redis.call('LTRIM', key, 0, -1 - taken)
  elseif taken > 0 then
    redis.call('ZREM', key, unpack(run, 1, taken))
  end
end

-- A job of a lane, then the others in their order, in the form of read_heads().
local function heads_from(job, key, most, below)
  local in_order, found, eligible = redis.pcall('ZRANGE', key, 0, most, 'WITHSCORES'), { job.id, job.score }, 0
  for at = 1, #in_order, 2 do
    if in_order[at] ~= job.id then found[#found + 1], found[#found + 2] = in_order[at], in_order[at + 1] end
  end
  while eligible < most and (tonumber(found[2 * eligible + 2]) or math.huge) < below do eligible = eligible + 1 end
  return found, eligible
end

local function claim_from_share(request, queue, job, below, claimed)
  local share = { name = job.name, pass = job.pass, stride = lanes().stride_of(job.name), at = 1, changes = {} }
  share.lanes, share.below = { { name = job.lane.name, score = tonumber(job.lane.score) } }, below
  share.read_heads = function(key, most) return heads_from(job, key, most, below) end
  touched_shares, left_lanes, looked_at, may_have_grown = { share }, {}, {}, false
  claim_from_lane(request, queue, share, 1, claimed)
  if share.pass > job.pass then lanes().write_pass(queue, job.pass) end
  write_shares(queue)
end

local function claim_from_queue(request, queue, first, aging, second, has_lanes, claimed)
  if not has_lanes then return claim_run(request, queue, first, aging, second, request.jobs - batch.size, claimed) end
  local size = batch.size
  claim_run(request, queue, first, aging, second, 1, claimed)
  lanes().write_pass(queue, first.pass)
  charge_others(queue, batch.size - size)
end

-- Then there is nothing to compare, and claim_lanes() serves the shares faster.
local function have_one_priority(queue, below)
  local found = next_without_lanes(queue, below)
  for _, one in ipairs(first_below(queue_key(queue, 'keyed'), below)) do found[one.band] = one end
  return not next(found) or not next(found, (next(found)))
end

local function claim_by_age(request, queue, aging, has_lanes, claimed)
  local examined, below = nil, (101 - tonumber(request.min_priority)) * BAND
  if has_lanes and have_one_priority(queue, below) then return end
  if has_lanes then lanes().call_due_lanes() end
  while has_room(request) and batch.examined ~= examined and bands < MAX_BANDS do
    examined = batch.examined
    local first, second = lanes().first_by_age(next_of_bands(queue, below, has_lanes), aging)
    if first and first.lane then
      claim_from_share(request, queue, first, below, claimed)
    elseif first then
      claim_from_queue(request, queue, first, aging, second, has_lanes, claimed)
    end
  end
end
