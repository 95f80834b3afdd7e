-- waiting: jobs that wait for parents, or for the release of their workflow, and the end of their waiting.
-- @include "workflow"
-- @include "lanes"
local end_job  -- defined in end_job.lua, which needs this file
local NO_PARENTS_LEFT = { 'waits', '0' }  -- fields of a job whose last parent has finished

-- Waiting jobs outside workflows are in a set of their queue; nothing else would list them.
local function join_waiting(queue, id)
  if not workflow_id_of(id) then redis.call('ZADD', queue_key(queue, 'waiting'), now_text, id) end
end
local function leave_waiting(queue, id)
  if not workflow_id_of(id) then redis.call('ZREM', queue_key(queue, 'waiting'), id) end
end

-- Cancels a job that is not running. from: its status; skips: whether its dependants are to be skipped.
local function cancel_idle(id, from, reason, skips)
  local queue, task, attempts, seq, audit, watched, dependants = unpack(
    read(id, 'queue', 'task', 'attempts', 'seq', 'audit', 'watched', 'then'))
  end_job({ id = id, queue = queue or 'default', task = task or '', child = '', attempt = integer(attempts) or 0,
    seq = integer(seq) or 1, audit = audit, watched = watched, from = from, skips = skips, dependants = dependants },
    'cancelled', '', '', reason)
end

-- Moves a waiting job into its queue, or among the scheduled ones. job.was_there: it existed before this script.
local function release_waiting(id, job)
  local queue, seq, priority = job.queue or 'default', (integer(job.seq) or 1) + 1, tonumber(job.priority) or 0
  if not is_sound(queue) then return defer('free:' .. id) end
  moved = moved + 1
  local due = due_of(job.when or '') or now
  local status, extra = 'queued', nil
  if due > now then status, extra = 'scheduled', ',"dueMs":' .. whole(due) end
  redis.call('HSET', job_key(id), 'status', status, 'seq', text(seq),
    unpack(job.parents_done and NO_PARENTS_LEFT or {}))
  if status == 'scheduled' then
    redis.call('HSET', job_key(id), 'due_ms', whole(due))
    postpone(queue, 'scheduled', id, due)
  else
    line_up(queue, id, priority, false, job.lane)
    wake(queue)
  end
  if job.was_there then leave_waiting(queue, id) end
  move_in_workflow(id, 'waiting', status)
  -- A job that was held for its workflow may have run before.
  local attempts = job.was_there and not job.parents_done and read(id, 'attempts')[1] or 0
  emit(id, status, queue, job.task or '', '', integer(attempts) or 0, seq, job.audit, extra)
end

local function read_waiting(id)
  local queue, task, priority, seq, audit, when, lane = unpack(
    read(id, 'queue', 'task', 'priority', 'seq', 'audit', 'when', 'lane'))
  return { queue = queue, task = task, priority = priority, seq = seq, audit = audit, when = when, lane = lane,
    was_there = true }
end

local function cancel_waiting(id, job, reason, skips)
  if not is_sound(job.queue or 'default') then return defer('end:' .. id) end
  moved = moved + 1
  leave_waiting(job.queue or 'default', id)
  cancel_idle(id, 'waiting', reason, skips)
end
