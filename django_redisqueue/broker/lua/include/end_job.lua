-- end_job: gives a job its final status. Every script that includes this must call flush().
--   job: table of id, queue, task, child, attempt, seq, audit, watched   field, body: what to store ('' = nothing)
--   reason: of a failed or cancelled job, or ''   from: its previous status, if that was not processing
-- For FINISHED_MAX_BYTES, the job's size is counted here and stored in its hash. The verb that deletes or requeues the
-- job subtracts it.
-- @include "followers"
-- @include "unique"
-- @include "index"
-- @include "steps"
-- @include "pending_writes"
local function flush()
  flush_workflows(call_back)
  flush_pending_writes()  -- including what a callback has counted
  flush_events()
end

-- The bytes of the hash with `body` as that field. A server that refuses OBJECT might have made a table of any hash.
local function size_with(key, field, body, watched)
  local fields = redis.call('HLEN', key) + (field == '' and 2 or 3)
  local texts = redis.call('HSTRLEN', key, 'payload') + redis.call('HSTRLEN', key, 'options') + #body
  if field == '' then texts = texts + redis.call('HSTRLEN', key, 'error') end  -- of an earlier attempt
  if has(watched, 'u') then texts = texts + redis.call('HSTRLEN', key, 'unique') end
  local encoding = redis.pcall('OBJECT', 'ENCODING', key)
  return estimate_bytes(fields, texts, #body > SHORT or encoding ~= 'listpack' and encoding ~= 'ziplist')
end

end_job = function(job, status, field, body, reason)  -- declared in waiting.lua
  local key, seq, extra = job_key(job.id), job.seq + 1, ''
  if status == 'completed' and has(job.watched, 'a') then stop_reading(job.id) end
  local size = size_with(key, field, body, job.watched) + close_steps(job.id, status, job.watched)
  if field == '' then
    redis.call('HSET', key, 'status', status, 'seq', text(seq), 'finished_ms', now_text, 'bytes', text(size))
  else
    redis.call('HSET', key, 'status', status, 'seq', text(seq), 'finished_ms', now_text, 'bytes', text(size),
      field, body)
  end
  if reason ~= '' then
    redis.call('HSET', key, 'reason', reason)
    extra = ',"reason":"' .. reason .. '"'
  end
  if has(job.watched, '1') then publish(base .. 'done:' .. job.id, status) end
  local writes = pending_writes(job.queue)
  writes[status][#writes[status] + 1] = job.id
  writes.bytes = writes.bytes + size
  emit(job.id, status, job.queue, job.task, job.child, job.attempt, seq, job.audit, extra, body)
  after_end(job, status, body)
  if has(job.watched, 'i') then unindex(job.id) end
  if has(job.watched, 'u') then let_go(job.id, status) end
  if has(job.watched, 'f') and not notify_followers_of_end(job.id, status) then defer('follow:' .. job.id) end
end

-- What a job that runs again keeps of the run that has just ended: when its first run started, and the children of its
-- runs, in order, separated by spaces. Only the first are kept, because no cap counts these bytes.
local MAX_RAN_BYTES = 500
local function record_run(id, child)
  local first_ms, started_ms, ran = unpack(read(id, 'first_ms', 'started_ms', 'ran'))
  ran = ran and ran .. ' ' .. child or child
  if not first_ms and started_ms then redis.call('HSET', job_key(id), 'first_ms', started_ms) end
  if #ran <= MAX_RAN_BYTES then redis.call('HSET', job_key(id), 'ran', ran) end
end
