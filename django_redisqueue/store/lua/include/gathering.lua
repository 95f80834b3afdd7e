-- gathering: what the jobs of one call share (list pushes, counters) is gathered, and written once a queue.
local gathered = {}

-- What a finished job takes of Redis's memory, with its key and its place in the final state, as it was measured
-- (test_bytes.py). texts: bytes of payload, options, result and error. Redis keeps a hash in one piece until a value
-- has over 64 bytes, and from then on as a table.
local SHORT = 64
local function bytes_of(fields, texts, is_table)
  if is_table then return 675 + 52 * fields + texts end
  return 237 + 23 * fields + texts
end

local function gather(queue)
  local found = gathered[queue]
  if not found then
    -- left: what is no longer processing, besides what has completed
    found = { left = {}, completed = {}, failed = {}, cancelled = {}, bytes = 0, counters = {} }
    gathered[queue] = found
  end
  return found
end

local function count(queue, counter)
  local counters = gather(queue).counters
  counters[counter] = (counters[counter] or 0) + 1
end

-- The ids of a final state stand in the order of their ends, to the microsecond; those of one script by their names.
local function by_end(ids)
  local score, scored = string.format('%s.%03d', now_text, micros), {}
  for at = 1, #ids do scored[2 * at - 1], scored[2 * at] = score, ids[at] end
  return scored
end

local function flush_lists()
  for queue, found in pairs(gathered) do
    local meta = queue_key(queue, 'meta')
    for _, ids in ipairs({ found.left, found.completed }) do
      if #ids > 0 then redis.call('ZREM', queue_key(queue, 'processing'), unpack(ids)) end
    end
    for _, status in ipairs({ 'completed', 'failed', 'cancelled' }) do
      local ids = found[status]
      if #ids > 0 then
        redis.call('ZADD', queue_key(queue, status), unpack(by_end(ids)))
        tally(meta, status .. '_total', #ids)
      end
    end
    for counter, by in pairs(found.counters) do
      if counter == 'enqueued_total' then count_made(queue, by) else tally(meta, counter, by) end
    end
    if found.bytes ~= 0 then tally(meta, 'finished_bytes', found.bytes) end
  end
  gathered = {}
end
