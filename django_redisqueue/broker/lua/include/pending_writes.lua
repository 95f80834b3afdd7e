-- pending_writes: list pushes and counters of one call, collected here and written once per queue at its end.
-- @include "job_size"
local writes_by_queue = {}

local function pending_writes(queue)
  local writes = writes_by_queue[queue]
  if not writes then
    -- left: ids that are no longer processing, besides those that have completed
    writes = { left = {}, completed = {}, failed = {}, cancelled = {}, bytes = 0, counters = {} }
    writes_by_queue[queue] = writes
  end
  return writes
end

local function count(queue, counter)
  local counters = pending_writes(queue).counters
  counters[counter] = (counters[counter] or 0) + 1
end

-- Ids with a final status are in the order of their ends, to the microsecond; those of one script in the order of ids.
local function scored_by_end(ids)
  local score, scored = string.format('%s.%03d', now_text, micros), {}
  for at = 1, #ids do scored[2 * at - 1], scored[2 * at] = score, ids[at] end
  return scored
end

local function flush_pending_writes()
  for queue, writes in pairs(writes_by_queue) do
    local meta = queue_key(queue, 'meta')
    for _, ids in ipairs({ writes.left, writes.completed }) do
      if #ids > 0 then redis.call('ZREM', queue_key(queue, 'processing'), unpack(ids)) end
    end
    for _, status in ipairs({ 'completed', 'failed', 'cancelled' }) do
      local ids = writes[status]
      if #ids > 0 then
        redis.call('ZADD', queue_key(queue, status), unpack(scored_by_end(ids)))
        increment(meta, status .. '_total', #ids)
      end
    end
    for counter, by in pairs(writes.counters) do
      if counter == 'enqueued_total' then count_enqueued(queue, by) else increment(meta, counter, by) end
    end
    if writes.bytes ~= 0 then increment(meta, 'finished_bytes', writes.bytes) end
  end
  writes_by_queue = {}
end
