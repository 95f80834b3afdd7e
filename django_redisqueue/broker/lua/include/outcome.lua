-- outcome: records the outcome of a job that a child holds, fenced by (id, child, lease). Returns
--   1 accepted   3 accepted, but as cancelled (also when superseded: unique.lua)   2 a repeat of one's own accepted
--   write   0 lease lost
--   4 nothing was written, because a key of the job's queue has the wrong type: to be sent again
-- kinds: completed (body = result JSON), retrying (body = error JSON, detail = delay ms),
--   failed (body = error JSON, detail = reason), cancelled (body = error JSON or '', detail = reason or ''),
--   delayed (like retrying, but spends no attempt), limited (likewise, and no other job of its rates starts earlier),
--   queued (back to its queue, spends nothing; detail = head or tail, or '' for a job that has not started, which
--   goes to the head), parked (body = its event, or '' to sleep; detail = due ms, or '' for an event without a timeout)
-- The lease outlives the run, so a repeat still has the right number; a recovered job's child is ''. Callers
-- read_claim() every job before the first write, and end with drop_settled(child) and flush().
-- @include "fast_path/implied_fields"
-- @include "end_job"
-- @include "waits"
-- @include "lanes"
local claims, settled_ids = {}, {}  -- what was read of jobs; ids that leave the processing list in this script

-- Returns whether the outcome of this job can be written. pcall as in read(), which costs more.
local function read_claim(id)
  local key = job_key(id)
  local status, child, lease, queue, task, seq, audit, watched, dependants = unpack(workflow_id_of(id)
    and redis.pcall('HMGET', key, 'status', 'child', 'lease', 'queue', 'task', 'seq', 'audit', 'watched', 'then')
    or redis.pcall('HMGET', key, 'status', 'child', 'lease', 'queue', 'task', 'seq', 'audit', 'watched'))
  local claim = { id = id, status = status, child = child, is_implied = not lease, lease = lease_of(status, lease),
    queue = queue or 'default', task = task or '', attempt = 1, seq = seq_of(status, seq, lease), audit = audit,
    watched = watched, dependants = dependants }
  -- Most jobs run for the first time and are not cancelled, so they have none of these.
  if claim.lease ~= FIRST_LEASE or has(watched, 'c') then
    local attempts, cancel_ms = unpack(read(id, 'attempts', 'cancel_ms'))
    claim.attempt, claim.cancel_ms = (integer(attempts) or 0) + 1, cancel_ms
    claim.has_error = attempts
  end
  if has(watched, 'l') then claim.lane, claim.started_ms = unpack(read(id, 'lane', 'started_ms')) end
  claim.is_broken = status and not is_sound(claim.queue)
  claims[id] = claim
  return not claim.is_broken
end

local function return_to_queue(job, kind, body, detail)
  local id, queue, attempts, seq = job.id, job.queue, job.attempt - 1, job.seq + 1
  local key = job_key(id)
  if kind == 'parked' then return park_job(job, body, detail) end
  if kind == 'queued' then
    redis.call('HSET', key, 'status', 'queued', 'seq', seq)
    move_in_workflow(id, 'processing', 'queued')
    if detail ~= '' then record_run(id, job.child) end
    if job.lane and detail == '' then lanes().give_back_tokens(job.lane, job.started_ms) end
    line_up(queue, id, tonumber(redis.call('HGET', key, 'priority') or 0), detail ~= 'tail', job.lane)
    wake(queue)
    count(queue, 'released_total')
    emit(id, 'queued', queue, job.task, job.child, attempts, seq, job.audit)
    return
  end
  if kind == 'retrying' then
    attempts = attempts + 1
    record_run(id, job.child)
  elseif kind == 'delayed' then
    increment(key, 'delays', 1)
  end
  local due = now + math.floor(tonumber(detail) or 0)
  if kind == 'limited' then
    record_run(id, job.child)
    if job.lane then lanes().hold_rates(job.lane, due) end
  end
  redis.call('HSET', key, 'status', 'retrying', 'seq', seq, 'attempts', attempts, 'due_ms', due, 'error', body)
  move_in_workflow(id, 'processing', 'retrying')
  postpone(queue, 'retrying', id, due)
  count(queue, 'retried_total')
  emit(id, 'retrying', queue, job.task, job.child, job.attempt, seq, job.audit, ',"dueMs":' .. due, body)
end

local function record_outcome(child, id, lease, kind, body, detail)
  local claim = claims[id]  -- also the job that end_job() takes
  if not claim.status then settled_ids[#settled_ids + 1] = id end  -- its hash is gone: nothing to hold
  if claim.child ~= child or claim.lease ~= lease then return 0 end
  if claim.status ~= 'processing' then return 2 end
  if claim.is_broken then return 4 end
  claim.status = kind
  if claim.is_implied then redis.call('HSET', job_key(id), 'lease', lease) end
  settled_ids[#settled_ids + 1] = id
  leave_slots(id, claim.lane)
  if kind == 'completed' then
    if claim.has_error then redis.call('HDEL', job_key(id), 'error') end
    end_job(claim, 'completed', 'result', body, '')
    return 1
  end
  table.insert(pending_writes(claim.queue).left, id)
  local error = kind ~= 'parked' and body or ''
  if kind == 'failed' then
    redis.call('HSET', job_key(id), 'attempts', claim.attempt)
    end_job(claim, 'failed', 'error', body, detail)
  elseif kind == 'cancelled' or claim.cancel_ms then
    if detail == 'expired' and claim.lane then lanes().give_back_tokens(claim.lane, claim.started_ms) end
    end_job(claim, 'cancelled', error ~= '' and 'error' or '', error, kind == 'cancelled' and detail or '')
    return kind == 'cancelled' and 1 or 3
  elseif has(claim.watched, 'u') and is_superseded(id) then
    end_job(claim, 'cancelled', error ~= '' and 'error' or '', error, 'superseded')
    return 3
  else
    return_to_queue(claim, kind, body, detail)
  end
  return 1
end

-- Removes settled jobs from the processing list: in one command when they are its head, as they mostly are.
local function drop_settled(child)
  if #settled_ids == 0 then return end
  local key, is_settled, others = processing_key(child), {}, false
  for _, id in ipairs(settled_ids) do is_settled[id] = true end
  local function leaves(entry) return is_settled[string.match(entry, ':(%S+)')] end
  local head = redis.call('LRANGE', key, 0, #settled_ids - 1)
  for _, entry in ipairs(head) do others = others or not leaves(entry) end
  if #head == #settled_ids and not others then
    redis.call('LTRIM', key, #settled_ids, -1)
  else
    for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do
      if leaves(entry) then redis.call('LREM', key, 1, entry) end
    end
  end
end
