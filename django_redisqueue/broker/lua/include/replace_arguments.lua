-- replace_arguments: gives newer arguments to a job that has not started, or that failed and is to be tried again
-- (duplicates.lua).
-- @include "unique"
-- @include "waiting"
-- @include "new_job"
-- @include "steps"
-- A job that waits for the end of a job that is gone would wait forever.
local function repair_waiting(id)
  local before, waits = unpack(read(id, 'before', 'waits'))
  local status = before and read(before, 'status')[1]
  if not before or waits ~= '1' or status and not is_final(status) then return end
  local job = read_waiting(id)
  job.parents_done = true
  release_waiting(id, job)
end

-- A failed attempt had other arguments: neither it nor its steps count. Returns the time at which the job is due.
local function new_due(found, id, status, watched)
  local due_ms, enqueued_ms, window_ms = unpack(read(id, 'due_ms', 'enqueued_ms', 'window_ms'))
  local first = tonumber(window_ms or enqueued_ms) or now
  if status == 'retrying' then
    first = now
    start_over(id, watched)
    redis.call('HDEL', job_key(id), 'attempts', 'delays', 'error', 'first_ms', 'started_ms', 'ran', 'child')
    redis.call('HSET', job_key(id), 'window_ms', now_text)
  end
  if found.mode ~= 'replace' then return tonumber(due_ms) or now end
  return math.min(now + found.ms, first + found.max_ms)
end

local function move_due(id, queue, from, due, priority)
  redis.call('ZREM', queue_key(queue, from), id)
  if due > now then
    redis.call('HSET', job_key(id), 'due_ms', whole(due))
    postpone(queue, 'scheduled', id, due)
    return 'scheduled', ',"dueMs":' .. whole(due)
  end
  redis.call('HDEL', job_key(id), 'due_ms')
  redis.call('HSET', job_key(id), 'ready_ms', now_text)
  line_up(queue, id, tonumber(priority) or 0, false, read(id, 'lane')[1])
  wake(queue)
  return 'queued', ''
end

-- Gives newer arguments to a job that is not running. One that is in its queue keeps its place.
local function replace_arguments(found, new)
  local id, key = found.owner, job_key(found.owner)
  local status, queue, task, priority, seq, audit, watched, lane = unpack(
    read(id, 'status', 'queue', 'task', 'priority', 'seq', 'audit', 'watched', 'lane'))
  local extra = ''
  queue, seq = queue or 'default', (integer(seq) or 1) + 1
  if has(watched, 'i') then unindex(id) end
  redis.call('HSET', key, 'payload', new.payload, 'options', new.options)
  if new.options == '' then redis.call('HDEL', key, 'options') end
  if string.find(new.options, '"expires":"+', 1, true) then redis.call('HSET', key, 'renewed_ms', now_text) end
  if is_indexed(new.options) and not has(watched, 'i') then
    watched = watched .. 'i'
    redis.call('HSET', key, 'watched', watched)
  end
  index(id, new.options)
  if status ~= 'queued' and lane and new.lane ~= '' then  -- one in its queue stays in its lane
    note_lane(new.lane)
    redis.call('HSET', key, 'lane', new.lane)
  end
  if status == 'scheduled' or status == 'retrying' then
    status, extra = move_due(id, queue, status, new_due(found, id, status, watched), priority)
  end
  redis.call('HSET', key, 'status', status, 'seq', text(seq))
  local shown = not string.find(new.options, '"redact":', 1, true)
  extra = extra .. ',"replaced":true' .. mirrored_options(new.options)
  emit(id, status, queue, task or '', '', '0', text(seq), audit, extra, shown and new.payload)
  if status == 'waiting' then repair_waiting(id) end
end
