-- claim_batch: takes up to `want.jobs` queued ids for one child, from its queues in strict order, within
-- a queue by priority and then first in, first out. Returns the reply of claim.lua.
-- A job that has taken a worker down before (recoveries > 0) is taken alone, and waits aside for it (claim_aside.lua).
-- Cost: a few commands a queue and two a job, whatever the length of the queue.
-- @include "claim_plain"
-- @include "full"
local EXAMINED = 100  -- ids a call

-- Takes ids in order; returns how many leave.
local function examine(want, queue, ids, claimed)
  local left, other = 0, nil
  repeat
    left, other = take_plain(want, queue, ids, left, claimed)
    if other then
      if not full().take(want, queue, ids[left + 1], other, claimed) then break end
      left = left + 1
    end
  until not other or batch.alone
  batch.examined = batch.examined + left
  return left
end

local function open(want)
  return batch.size < want.jobs and batch.examined < EXAMINED and not batch.full and not batch.alone
end

-- Of those that wait aside, for a child that holds nothing.
local function take_suspect(want, queue, claimed)
  while open(want) do
    local id = full().first_aside(queue, want.min_priority)
    if not id then return end
    if batch.size > 0 or want.holding > 0 then
      batch.waits = true
      return
    end
    full().take(want, queue, id, {}, claimed)  -- or it is stale, and leaves too
    redis.call('ZREM', queue_key(queue, 'priority'), id)
    batch.examined = batch.examined + 1
  end
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
