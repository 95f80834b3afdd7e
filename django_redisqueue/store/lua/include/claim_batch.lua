-- claim_batch: takes up to `want.jobs` queued ids for one child, from its queues in strict order, within
-- a queue by priority and then first in, first out. Returns the reply of claim.lua.
-- A job that has taken a worker down before (recoveries > 0) is taken alone: last, or not at all.
-- Cost: a few commands a queue and two a job, whatever the length of the queue.
-- @include "hand_over"
-- @include "tombstone"
local EXAMINED, PAYLOADS = 100, 1000000  -- ids, and bytes of payload, a call

-- True when a queued job may not join the batch; notes why.
local function stays(want, f)
  if batch.size > 0 and batch.bytes + #(f[3] or '') > PAYLOADS then
    batch.full = true
    return true
  end
  if f.recoveries and f.recoveries ~= '0' then
    batch.alone = true
    return batch.size > 0 or want.holding > 0
  end
end

-- Looks at ids in order (by pcall as read(), which costs more); returns how many leave (claimed, stale, no hash).
local function examine(want, queue, ids, claimed)
  for position, id in ipairs(ids) do
    local f = redis.pcall('HMGET', job_key(id), 'status', 'task', 'payload', 'lease', 'options', 'seq', 'audit',
      'watched')
    if f[4] then f.attempts, f.recoveries = unpack(read(id, 'attempts', 'recoveries')) end
    batch.examined = batch.examined + 1
    local flow = f[1] == 'queued' and is_of_workflow(id) and full().flow_of_job(id)
    if flow and full().is_held(flow) then
      full().hold_back(flow, queue, id, f)
    elseif f[1] == 'queued' then
      if stays(want, f) then return position - 1 end
      hand_over(want, queue, id, f, flow)
      claimed[#claimed + 1], claimed[#claimed + 2] = now_text, id
      if batch.alone then return position end
    elseif not linger_no_more(id, f[1]) then
      batch.lost[#batch.lost + 1] = id
    end
  end
  return #ids
end

local function open(want)
  return batch.size < want.jobs and batch.examined < EXAMINED and not batch.full and not batch.alone
end

local function take_by_priority(want, queue, low, high, claimed)
  local key = queue_key(queue, 'priority')
  while open(want) do
    local ids = redis.call('ZRANGEBYSCORE', key, low, high, 'LIMIT', 0, want.jobs - batch.size)
    if #ids == 0 then return end
    local leave = examine(want, queue, ids, claimed)
    if leave > 0 then redis.call('ZREM', key, unpack(ids, 1, leave)) end
  end
end

local function take_in_order(want, queue, claimed)
  local key = queue_key(queue, 'queued')
  while open(want) do
    local tail = redis.call('LRANGE', key, batch.size - want.jobs, -1)
    if #tail == 0 then return end
    local ids = {}
    for position = #tail, 1, -1 do ids[#ids + 1] = tail[position] end
    local leave = examine(want, queue, ids, claimed)
    if leave > 0 then redis.call('LTRIM', key, 0, -1 - leave) end
  end
end
