-- conclude: gives a job its final status. Every script that includes this must call flush().
--   job: table of id, queue, task, child, attempt, seq, audit, watched   field, body: what to store ('' = none)
--   reason: a word for a failed job, or ''   from: its status until now, if it was not processing
-- FINISHED_MAX_BYTES is kept by counting a job's size here and noting it in its hash, for the verb that
-- lets the job go, or sends it round again, to count down.
-- @include "followers"
-- @include "index"
-- @include "gathering"
local function flush()
  flush_lists()
  flush_flows()
  flush_events()
end

-- What its hash will take with `body` as that field.
local function size_with(key, field, body)
  local fields = redis.call('HLEN', key) + (field == '' and 2 or 3)
  local texts = redis.call('HSTRLEN', key, 'payload') + redis.call('HSTRLEN', key, 'options') + #body
  if field == '' then texts = texts + redis.call('HSTRLEN', key, 'error') end  -- of an attempt before
  return bytes_of(fields, texts, #body > SHORT or redis.call('OBJECT', 'ENCODING', key) == 'hashtable')
end

conclude = function(job, status, field, body, reason)  -- declared in waiting.lua
  local key, seq, extra = job_key(job.id), job.seq + 1, ''
  if status == 'completed' and has(job.watched, 'a') then read_no_more(job.id) end
  local size = size_with(key, field, body)
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
  if has(job.watched, '1') then redis.call('PUBLISH', base .. 'done:' .. job.id, status) end
  local found = gather(job.queue)
  found[status][#found[status] + 1] = job.id
  found.bytes = found.bytes + size
  emit(job.id, status, job.queue, job.task, job.child, job.attempt, seq, job.audit, extra, body)
  job_ended(job, status, body)
  if has(job.watched, 'i') then unindex(job.id) end
  if has(job.watched, 'f') then end_for_followers(job.id, status) end
end
