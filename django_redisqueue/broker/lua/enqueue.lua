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
-- their types, queue and stream have been used, and no entry is due for the trim index. Its first writes are checks,
-- for half of the price: each is refused as a read would be, and then those before it are taken back.
local id, queue, task, payload, options, priority, due, audit, second = unpack(ARGV, 5, 13)
local queued_key, new_key = base .. 'q:' .. queue, base .. 'job:' .. id
local meta_key, wake_key = queued_key .. ':meta', queued_key .. ':wake'
local is_usual, shared, total, enqueued_total, length
local tokens = 0
if ARGV[4] == '0' and options == '' and priority == '0' and due == '' and audit == '' and not second then
  local known = redis.pcall('EXISTS', new_key, wake_key)
  if known == 1 then tokens = redis.pcall('LLEN', wake_key) end
  is_usual = known == 0 or known == 1 and type(tokens) == 'number' and tokens > 0  -- not the job
  total = is_usual and redis.pcall('HINCRBY', KEYS[1], 'events', '1')
  is_usual = type(total) == 'number' and total > 1 and total % STEP > 0
  enqueued_total = is_usual and redis.pcall('HINCRBY', meta_key, 'enqueued_total', '1')
  is_usual = type(enqueued_total) == 'number' and enqueued_total > 1
  length = is_usual and redis.pcall('LPUSH', queued_key, id)
  if type(length) == 'number' then
    shared = event_json('queued', queue, task, '', '0', '1', '')
    is_usual = type(redis.pcall('XADD', events_key, '*', ':n', string.format('%d', total - 1), ':alike', shared,
      id, #payload <= INLINE and payload or '')) == 'string'
  else
    is_usual = false
  end
end
if not is_usual then
  if type(length) == 'number' then redis.call('LPOP', queued_key) end
  for key, sums in pairs({ [meta_key] = { 'enqueued_total', enqueued_total }, [KEYS[1]] = { 'events', total } }) do
    if sums[2] == 1 then
      redis.call('HDEL', key, sums[1])
    elseif type(sums[2]) == 'number' then
      redis.call('HINCRBY', key, sums[1], '-1')
    end
  end
-- @include "create_jobs"
  return create_jobs()
end

if queue == 'default' then
  redis.call('HSET', new_key, 'task', task, 'payload', payload, 'status', 'queued', 'enqueued_ms', now_text)
else
  redis.call('HSET', new_key, 'task', task, 'payload', payload, 'status', 'queued', 'enqueued_ms', now_text,
    'queue', queue)
end
if tokens == 0 then redis.call('LPUSH', wake_key, '1') end
publish(channel, '{"jobId":"' .. id .. '",' .. string.sub(shared, 2))
return { 1 }
