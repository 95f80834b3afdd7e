-- settle: what becomes of a job that a child holds, fenced by (id, child, lease). Returns
--   1 accepted   3 accepted, but as cancelled   2 a repeat of one's own accepted write   0 lease lost
--   4 nothing was written, for a key of its queue is of a wrong type: to be sent again
-- verdicts: completed (body = result JSON), retrying (body = error JSON, detail = delay ms),
--   failed (body = error JSON, detail = reason), cancelled (body = error JSON or ''),
--   delayed (as retrying, but spends no attempt), queued (handed back to the head, spends nothing).
-- The lease outlives the run, so a repeat meets its own number; a recovered job's child is ''. Callers look() at every
-- job before the first write (it says whether its outcome can be written), and end with drop_held(child) and flush().
-- @include "held"
-- @include "unsaid"
-- @include "ran"
local looked, NO_MORE = {}, {}
local function look(id)
  local key = job_key(id)  -- by pcall as read() does it, which costs more, as every field does
  local f = flow_of(id)
    and redis.pcall('HMGET', key, 'status', 'child', 'lease', 'queue', 'task', 'seq', 'audit', 'watched', 'then')
    or redis.pcall('HMGET', key, 'status', 'child', 'lease', 'queue', 'task', 'seq', 'audit', 'watched')
  looked[id], f.is_unsaid = f, not f[3]
  f[3], f[6] = lease_of(f[1], f[3]), seq_of(f[1], f[6])
  -- Most jobs run for the first time, and nobody cancels them: they have none of these.
  if f[3] ~= FIRST_LEASE or has(f[8], 'c') then f.more = read(id, 'attempts', 'cancel_ms') end
  f.is_unsound = f[1] and not is_sound(f[4] or 'default')
  return not f.is_unsound
end

local function settle_again(child, job, verdict, body, detail)
  local id, queue, attempts, seq = job.id, job.queue, job.attempt - 1, job.seq + 1
  local key = job_key(id)
  if verdict == 'queued' then
    redis.call('HSET', key, 'status', 'queued', 'seq', seq)
    flow_move(id, 'processing', 'queued')
    place(queue, id, tonumber(redis.call('HGET', key, 'priority') or 0), true)
    wake(queue)
    count(queue, 'released_total')
    emit(id, 'queued', queue, job.task, child, attempts, seq, job.audit)
    return
  end
  if verdict == 'retrying' then
    attempts = attempts + 1
    remember_run(id, child)
  else
    tally(key, 'delays', 1)
  end
  local due = now + math.floor(tonumber(detail) or 0)
  redis.call('HSET', key, 'status', 'retrying', 'seq', seq, 'attempts', attempts, 'due_ms', due, 'error', body)
  flow_move(id, 'processing', 'retrying')
  postpone(queue, 'retrying', id, due)
  count(queue, 'retried_total')
  emit(id, 'retrying', queue, job.task, child, job.attempt, seq, job.audit, ',"dueMs":' .. due, body)
end

local function settle(child, id, lease, verdict, body, detail)
  local f = looked[id]
  if not f[1] then settled[#settled + 1] = id end  -- its hash is gone: nothing to hold
  if f[2] ~= child or f[3] ~= lease then return 0 end
  if f[1] ~= 'processing' then return 2 end
  if f.is_unsound then return 4 end
  f[1] = verdict
  if f.is_unsaid then redis.call('HSET', job_key(id), 'lease', lease) end
  local queue, more = f[4] or 'default', f.more or NO_MORE
  local job = { id = id, queue = queue, task = f[5] or '', child = child, attempt = (integer(more[1]) or 0) + 1,
    seq = f[6], audit = f[7], watched = f[8], dependants = f[9] }
  settled[#settled + 1] = id
  if verdict == 'completed' then
    if more[1] then redis.call('HDEL', job_key(id), 'error') end
    conclude(job, 'completed', 'result', body, '')
    return 1
  end
  table.insert(gather(queue).left, id)
  if verdict == 'failed' then
    redis.call('HSET', job_key(id), 'attempts', job.attempt)
    conclude(job, 'failed', 'error', body, detail)
  elseif verdict == 'cancelled' or more[2] then
    conclude(job, 'cancelled', body ~= '' and 'error' or '', body, '')
    return verdict == 'cancelled' and 1 or 3
  else
    settle_again(child, job, verdict, body, detail)
  end
  return 1
end
