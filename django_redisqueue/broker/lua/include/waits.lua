-- waits: jobs that sleep, or wait for an event. Such a job is scheduled: for its end, or for its timeout. Its hash has
-- `waits_for`, the event ('' to sleep) and `parked_ms`; a ZSET of the event has its id until it resumes. Its steps have
-- a field "sleep:<name>" or "wait:<event>": "until <due ms>" (a wait after a requeue: "until <due ms> <generation>"),
-- then "event <payload>" or "late <generation>".
-- @include "workflow"
-- @include "fast_path/implied_fields"
-- @include "steps"
-- @include "promote"
local FOR_EVER = 9e13  -- ms, as the due time of a job that waits without a timeout
local NO_LIMIT = 2 ^ 40  -- bytes: of a payload, whose size was checked when it was sent
local function wait_field(event) return 'wait:' .. event end

-- Gives an event to a job that waits for it, and moves the job to the tail of its queue.
local function wake_waiting(id, event, payload)
  local status, waits_for, queue = unpack(read(id, 'status', 'waits_for', 'queue'))
  if waits_for ~= event or status ~= 'scheduled' and status ~= 'queued' and status ~= 'processing' then return end
  if payload then remember(id, wait_field(event), 'event ' .. payload, NO_LIMIT) end
  if status ~= 'scheduled' then return end  -- its timeout has passed, but it has not asked yet
  queue = queue or 'default'
  if not is_sound(queue) then return defer('wake:' .. id .. ' ' .. event) end
  promote_job(queue, 'scheduled', id)
  wake(queue)
  moved = moved + 1
end

-- Wakes as many of the waiting jobs as the budget and 1 MB of payloads allow. Returns whether that was all.
local MAX_COPIED = 1000000
local function wake_all(event)
  local key, payload = awaiting_key(event), redis.call('GET', event_key(event))
  if not payload then return true end
  local count = math.max(1, math.min(budget, math.floor(MAX_COPIED / (#payload + 1))))
  local ids = redis.call('ZRANGE', key, 0, count - 1)
  for _, id in ipairs(ids) do wake_waiting(id, event, payload) end
  if #ids > 0 then redis.call('ZREM', key, unpack(ids)) end
  budget = budget - #ids
  return redis.call('EXISTS', key) == 0
end

-- Parks a job that a child has held. An event that was sent after the job asked (check_wait.lua) wakes it at once.
local function park_job(job, event, due)
  local id, queue, seq = job.id, job.queue, job.seq + 1
  record_run(id, job.child)
  local earlier = read(id, 'waits_for')[1]
  if earlier and earlier ~= event then redis.pcall('ZREM', awaiting_key(earlier), id) end
  redis.call('HSET', job_key(id), 'status', 'scheduled', 'seq', seq, 'waits_for', event, 'parked_ms', now_text)
  if due ~= '' then redis.call('HSET', job_key(id), 'due_ms', due) end
  move_in_workflow(id, 'processing', 'scheduled')
  postpone(queue, 'scheduled', id, tonumber(due) or FOR_EVER)
  redis.pcall('ZADD', wait_list_key(event), now_text, id)
  emit(id, 'scheduled', queue, job.task, job.child, job.attempt - 1, seq, job.audit,
    due ~= '' and ',"dueMs":' .. due or '')
  local payload = event ~= '' and redis.call('GET', event_key(event))
  if payload then
    wake_waiting(id, event, payload)
  elseif event ~= '' then
    redis.call('ZADD', awaiting_key(event), now_text, id)
  end
end
