-- claim_lanes: claims jobs with lanes: from the share with the lowest pass, the head of the lane whose head is first.
-- The first shares and lanes are read once and kept in order here; their changes are written at the end. A part of
-- fast_path/slow_path.lua.
-- @first_use
-- @include "claim_lane"
local function open_share(queue, share, most)
  if share.lanes then return end
  share.lanes, share.is_all = read_in_order(lanes().ready_key(queue, share.name), '+inf', most,
    function(name, score) return { name = name, score = score } end)
  share.at, share.changes, share.stride = 1, {}, lanes().stride_of(share.name)
  touched_shares[#touched_shares + 1] = share
end

local function write_shares(queue)
  for _, share in ipairs(touched_shares) do
    local key, back, gone = lanes().ready_key(queue, share.name), {}, {}
    for name, score in pairs(share.changes) do
      if may_have_grown then score = lanes().ready_score(queue, lanes().lane_named(name)) end
      if score then back[#back + 1], back[#back + 2] = score, name else gone[#gone + 1] = name end
    end
    if #back > 0 then redis.pcall('ZADD', key, unpack(back)) end
    if #gone > 0 then redis.pcall('ZREM', key, unpack(gone)) end
    lanes().refresh_share(queue, share.name, share.pass)
  end
  if #left_lanes > 0 then redis.call('ZREM', queue_key(queue, 'keyed'), unpack(left_lanes)) end
  lanes().write_slots()
  lanes().call_lanes_of(looked_at, #looked_at)
end

local function pass_of_others(queue)
  local own = integer(redis.call('HGET', queue_key(queue, 'meta'), 'others_pass')) or 0
  return math.max(own, lanes().queue_pass(queue))
end
local function charge_others(queue, jobs)
  local pass = pass_of_others(queue) + jobs * lanes().stride_of('')
  redis.call('HSET', queue_key(queue, 'meta'), 'others_pass', whole(pass))
  return pass
end

-- The queue's jobs without lanes are one share among the others: its place among them, or nil if there are none.
local function others_share(queue, lowest)
  local first = redis.call('ZRANGE', queue_key(queue, 'priority'), 0, 0, 'WITHSCORES')[2]
  local band = first and band_of(first) or 201
  if band > 100 and redis.call('EXISTS', queue_key(queue, 'queued')) == 1 then band = 100 end
  if band > 100 - lowest then return nil end
  local pass = pass_of_others(queue)
  return { is_others = true, score = band * BAND + pass, pass = pass, stride = lanes().stride_of('') }
end

-- Only jobs of the share's priority: the ids before them may be those of cancelled jobs, which a claim drops.
local function claim_from_others(request, queue, share, most, claimed)
  local size, examined, lowest = batch.size, batch.examined, request.min_priority
  request.min_priority = math.max(tonumber(lowest), 100 - band_of(share.score))
  claim_without_lanes(request, queue, most, claimed)
  request.min_priority = lowest
  share.pass = charge_others(queue, batch.size - size)
  return batch.examined > examined and others_share(queue, tonumber(request.min_priority)) or nil
end

-- One share's turn. Returns the share with its new place among the others, or nil.
local function take_turn(request, queue, share, most, lanes_of_each, claimed)
  if share.is_others then return claim_from_others(request, queue, share, most, claimed) end
  open_share(queue, share, lanes_of_each)
  if not share.lanes[share.at] or not claim_from_lane(request, queue, share, most, claimed) then return nil end
  local first = share.lanes[share.at]
  if not first then return nil end
  share.score = first.score - first.score % BAND + share.pass
  return first.score < share.below and share or nil
end

local function claim_from_shares(request, queue, claimed)
  touched_shares, left_lanes, looked_at, may_have_grown = {}, {}, {}, false
  local below, reached = (101 - tonumber(request.min_priority)) * BAND, 0
  local wanted = request.jobs - batch.size
  local shares, is_all = read_in_order(queue_key(queue, 'shares'), '(' .. whole(below), wanted,
    function(name, score) return { name = name, score = score, pass = score % BAND, below = below } end)
  if not shares[1] then return end
  local lanes_of_each = math.ceil(wanted / #shares) + 1
  local others = others_share(queue, tonumber(request.min_priority))
  if others then insert_by_score(shares, others, true) end
  while has_room(request) and shares[1] and not (shares[1].is_others and #shares == 1 and is_all) do
    local share, back = table.remove(shares, 1), nil
    repeat  -- the only share has one turn after another
      local most = shares[1] and 1 or request.jobs - batch.size
      back = take_turn(request, queue, share, most, lanes_of_each, claimed)
    until not back or shares[1] or not is_all or not has_room(request)
    reached = math.max(reached, share.pass - (share.stride or 0))  -- where its last job began
    if back then insert_by_score(shares, back, is_all) end
  end
  lanes().write_pass(queue, reached)
  write_shares(queue)
end

local function claim_lanes(request, queue, claimed)
  lanes().call_due_lanes()
  local examined
  repeat
    examined = batch.examined
    claim_from_shares(request, queue, claimed)
  until batch.examined == examined or not has_room(request)
end

-- Called when the last job with a lane has left the queue.
local function forget_passes(queue)
  if lanes().has_lanes(queue) then return end
  redis.call('HDEL', queue_key(queue, 'meta'), 'keyed', 'pass', 'others_pass')
  redis.call('UNLINK', queue_key(queue, 'passes'))  -- may have a member for each of many shares
end
