-- claim_order: the order of claims within one queue: jobs set aside, priorities above 0, the list, priorities below.
-- Included by claim_queues.lua. Queues with aging have another order (claim_by_age.lua).
local BAND_WIDTH = 2 ^ 45  -- of scores that one priority has (place.lua)

-- Claims ids in order. Returns how many leave their list.
claim_ids = function(request, queue, ids, claimed)
  local taken, row = 0, nil
  repeat
    taken, row = claim_eligible(request, queue, ids, taken, claimed)
    if row and is_of_workflow(ids[taken + 1]) then
      taken, row = claim_first_runs(request, queue, ids, taken, claimed)
    end
    if row then
      if not slow_path().claim_one(request, queue, ids[taken + 1], row, claimed) then break end
      taken = taken + 1
    end
  until row == nil or batch.alone
  batch.examined = batch.examined + taken
  return taken
end

local function claim_set_aside(request, queue, aging, claimed)
  while has_room(request) do
    local id = slow_path().first_set_aside(queue, request.min_priority, aging)
    if not id then return end
    if batch.size > 0 or request.holding > 0 then
      batch.waits = true
      return
    end
    slow_path().claim_one(request, queue, id, {}, claimed)  -- a stale id also leaves
    redis.call('ZREM', queue_key(queue, 'priority'), id)
    batch.examined = batch.examined + 1
  end
end

local function claim_by_priority(request, queue, low, high, claimed)
  local key = queue_key(queue, 'priority')
  while has_room(request) do
    local ids = redis.call('ZRANGEBYSCORE', key, low, high, 'LIMIT', 0, request.jobs - batch.size)
    if #ids == 0 then return end
    local taken = claim_ids(request, queue, ids, claimed)
    if taken > 0 then redis.call('ZREM', key, unpack(ids, 1, taken)) end
  end
end

local function claim_in_order(request, queue, claimed)
  local key = queue_key(queue, 'queued')
  while has_room(request) do
    local size, wanted = batch.size, request.jobs - batch.size
    local tail = redis.call('LRANGE', key, '-' .. text(wanted), '-1')
    if #tail == 0 then return end
    local ids = {}
    for position = #tail, 1, -1 do ids[#ids + 1] = tail[position] end
    local taken = claim_ids(request, queue, ids, claimed)
    if taken > 0 then redis.call('LTRIM', key, '0', '-' .. text(taken + 1)) end
    if #tail < wanted and batch.size - size == #tail then return end  -- it was the whole list, and nothing was put back
  end
end

-- Up to `most` jobs without lanes, of the priorities that the child claims.
claim_without_lanes = function(request, queue, most, claimed)
  local wanted, lowest = request.jobs, tonumber(request.min_priority)
  request.jobs = math.min(wanted, batch.size + most)
  local lowest_score = '(' .. whole((101 - lowest) * BAND_WIDTH)
  local above_list = '(' .. whole(math.min(101, 101 - lowest) * BAND_WIDTH)  -- with those that compact.lua moves
  claim_by_priority(request, queue, '-inf', above_list, claimed)
  if lowest <= 0 then
    claim_in_order(request, queue, claimed)
    claim_by_priority(request, queue, whole(101 * BAND_WIDTH), lowest_score, claimed)
  end
  request.jobs = wanted
end
