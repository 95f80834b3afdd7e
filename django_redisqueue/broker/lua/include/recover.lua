-- recover: takes a job back from a dead child. Returns its outcome:
--   'released' (had not started), 'recovered', 'poison', 'cancelled', or nil if the child no longer held it.
-- blamed: the job had started, so the crash counts. alone: it is the only job that can have caused it.
-- @include "fast_path/implied_fields"
-- @include "end_job"
-- @include "lanes"
local function recover(child, id, blamed, alone, limit)
  local key = job_key(id)
  local status, holder, queue, task, attempts, old_seq, audit, cancel_ms, old_recoveries, priority, watched, dependants,
    lease, forgiven, lane = unpack(read(id, 'status', 'child', 'queue', 'task', 'attempts', 'seq', 'audit', 'cancel_ms',
      'recoveries', 'priority', 'watched', 'then', 'lease', 'forgiven', 'lane'))
  if status ~= 'processing' or (holder or '') ~= child then return nil end
  queue = queue or 'default'
  local recoveries = (integer(old_recoveries) or 0) + (blamed and 1 or 0)
  local job = { id = id, queue = queue, task = task or '', child = child, attempt = (integer(attempts) or 0) + 1,
    seq = seq_of(status, old_seq, lease), audit = audit, watched = watched, dependants = dependants }
  local left = pending_writes(queue).left
  left[#left + 1] = id
  if blamed then record_run(id, child) end
  leave_slots(id, lane)
  redis.call('HSET', key, 'child', '', 'recoveries', recoveries, 'lease', lease_of(status, lease))
  if cancel_ms then
    end_job(job, 'cancelled', '', '', '')
    return 'cancelled'
  end
  if blamed and alone and recoveries - (integer(forgiven) or 0) >= limit then
    local error = '{"type":"WorkerLost","message":"the worker process died ' .. recoveries
      .. ' times while it ran this job (killed, out of memory, or os._exit)","traceback":""}'
    job.attempt = (integer(attempts) or 0) + recoveries  -- its starts: only their number tells what it has cost
    redis.call('HSET', key, 'attempts', job.attempt)
    end_job(job, 'failed', 'error', error, 'poison')
    return 'poison'
  end
  if has(watched, 'u') and is_superseded(id) then
    end_job(job, 'cancelled', '', '', 'superseded')
    return 'cancelled'
  end
  redis.call('HSET', key, 'status', 'queued', 'seq', job.seq + 1)
  move_in_workflow(id, 'processing', 'queued')
  line_up(queue, id, tonumber(priority) or 0, true, lane)
  wake(queue)
  count(queue, blamed and 'recovered_total' or 'released_total')
  emit(id, 'queued', queue, job.task, child, job.attempt - 1, job.seq + 1, job.audit, ',"recoveries":' .. recoveries)
  return blamed and 'recovered' or 'released'
end
