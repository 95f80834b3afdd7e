-- enqueue: creates jobs. Sending an id again changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 whether the jobs have rows in an outbox (0/1); 5.. 8 fields a job (1-100 jobs): id, queue, task,
--      payload JSON, options JSON or '', priority, when ('' now, '+<ms>' from now, '<ms>' instant), audit ('' = all)
-- Reply, one code a job: 1 created, 0 already known, -1 its key holds something other than a job
-- Arguments that the options redact are stored in the hash only, not in the event. A full Redis refuses the first
-- write, so nothing is half created.
-- @include "context"
-- @include "trim_index"
-- @include "event_json"

-- The fast path: one job without options, row and delay. It does what create_jobs() does if all is as usual: keys have
-- their types, queue and stream have been used, and no entry is due for the trim index. An error is not a number.
local function is_counter(reply) return type(reply) == 'string' and string.find(reply, '^%d+$') end
local id, queue, task, payload = unpack(ARGV, 5, 8)
local queued_key = queue_key(queue, 'queued')
local meta_key, wake_key = queued_key .. ':meta', queued_key .. ':wake'
local is_plain = ARGV[4] == '0' and table.concat(ARGV, ' ', 9) == ' 0  '
local written, tokens = is_plain and redis.pcall('HGET', KEYS[1], 'events'), is_plain and redis.pcall('LLEN', wake_key)
local is_usual = is_counter(written) and (written + 1) % STEP > 1 and tonumber(tokens)
  and is_counter(redis.pcall('HGET', meta_key, 'enqueued_total')) and tonumber(redis.pcall('LLEN', queued_key))
  and tonumber(redis.pcall('XLEN', events_key)) and tonumber(redis.pcall('LLEN', trim_index_key))
  and redis.pcall('EXISTS', job_key(id)) == 0
if not is_usual then
-- @include "create_jobs"
  return create_jobs()
end

local shared = event_json('queued', queue, task, '', '0', '1', '')
if queue == 'default' then
  redis.call('HSET', job_key(id), 'task', task, 'payload', payload, 'status', 'queued', 'enqueued_ms', now_text)
else
  redis.call('HSET', job_key(id), 'task', task, 'payload', payload, 'status', 'queued', 'enqueued_ms', now_text,
    'queue', queue)
end
redis.call('LPUSH', queued_key, id)
if tokens == 0 then redis.call('LPUSH', wake_key, '1') end
redis.call('HINCRBY', meta_key, 'enqueued_total', '1')
redis.call('HINCRBY', KEYS[1], 'events', '1')
redis.call('XADD', events_key, '*', ':n', written, ':alike', shared, id, #payload <= INLINE and payload or '')
publish_event(id, shared)
return { 1 }
