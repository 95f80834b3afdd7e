-- recover: takes a job back from a child that is gone. Returns what became of it:
--   'released' (had not started), 'recovered', 'poison', 'cancelled', or nil when the child no longer held it.
-- blamed: the job had started, so the crash counts. alone: it was the only one that can be blamed.
-- @include "unsaid"
-- @include "ran"
local function recover(child, id, blamed, alone, limit)
  local key = job_key(id)
  local f = read(id, 'status', 'child', 'queue', 'task', 'attempts', 'seq', 'audit',
    'cancel_ms', 'recoveries', 'priority', 'watched', 'then', 'lease')
  if f[1] ~= 'processing' or (f[2] or '') ~= child then return nil end
  local queue, recoveries = f[3] or 'default', (integer(f[9]) or 0) + (blamed and 1 or 0)
  local job = { id = id, queue = queue, task = f[4] or '', child = child, attempt = (integer(f[5]) or 0) + 1,
    seq = seq_of(f[1], f[6]), audit = f[7], watched = f[11], dependants = f[12] }
  local left = gather(queue).left
  left[#left + 1] = id
  if blamed then remember_run(id, child) end
  redis.call('HSET', key, 'child', '', 'recoveries', recoveries, 'lease', lease_of(f[1], f[13]))
  if f[8] then
    conclude(job, 'cancelled', '', '', '')
    return 'cancelled'
  end
  if blamed and alone and recoveries >= limit then
    local error = '{"type":"WorkerLost","message":"the worker process died ' .. recoveries
      .. ' times while it ran this job (killed, out of memory, or os._exit)","traceback":""}'
    conclude(job, 'failed', 'error', error, 'poison')
    return 'poison'
  end
  redis.call('HSET', key, 'status', 'queued', 'seq', job.seq + 1)
  flow_move(id, 'processing', 'queued')
  place(queue, id, tonumber(f[10]) or 0, true)
  wake(queue)
  count(queue, blamed and 'recovered_total' or 'released_total')
  emit(id, 'queued', queue, job.task, child, job.attempt - 1, job.seq + 1, job.audit, ',"recoveries":' .. recoveries)
  return blamed and 'recovered' or 'released'
end
