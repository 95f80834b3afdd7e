-- enqueue: creates jobs. Sending an id again changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; then either one plain job, without options, priority, delay, audit and row:
--      4 id; 5 queue; 6 task; 7 payload JSON
--      or any jobs: 4 whether they have outbox rows (0/1); 5.. 8 fields per job (1-100 jobs): id, queue, task,
--      payload JSON, options JSON or '', priority, when ('' now, '+<ms>' from now, '<ms>' a time), audit ('' = all)
-- Reply: the code of the plain job, or one code per job: 1 created, 0 already known, -1 its key holds something other
--      than a job
-- Redacted arguments are stored in the hash only, not in the event. A full Redis refuses the first write, so no job is
-- half created.
-- @include "clock"
-- @include "trim_step"

-- The fast path: a plain job. It does what create_jobs() does in the usual case: keys have their types, queue and
-- stream have been used, and no entry is due for the trim index. Its first writes double as checks, at half the price:
-- each is refused as a read would be, and then the ones before it are undone. It comes before the context, because it
-- needs little of it.
local id, queue, task, payload, is_general = unpack(ARGV, 4, 8)
local base = string.sub(KEYS[1], 1, -5)
local is_usual, tokens = not is_general, 0
local queued_key, new_key, meta_key, wake_key, total, enqueued_total, length, event
if is_usual then
  queued_key, new_key = base .. 'q:' .. queue, base .. 'job:' .. id
  meta_key, wake_key = queued_key .. ':meta', queued_key .. ':wake'
  local known = redis.pcall('EXISTS', new_key, wake_key)
  if known == 1 then tokens = redis.pcall('LLEN', wake_key) end
  is_usual = known == 0 or known == 1 and type(tokens) == 'number' and tokens > 0  -- of other keys, not the job
  total = is_usual and redis.pcall('HINCRBY', KEYS[1], 'events', '1')
  is_usual = type(total) == 'number' and total > 1 and total % STEP > 0
  enqueued_total = is_usual and redis.pcall('HINCRBY', meta_key, 'enqueued_total', '1')
  is_usual = type(enqueued_total) == 'number' and enqueued_total > 1
  length = is_usual and redis.pcall('LPUSH', queued_key, id)
  is_usual = type(length) == 'number'
end
if is_usual then
  event = '"status":"queued","queue":"' .. queue .. '","task":"' .. task
    .. '","workerId":"","attempt":0,"seq":1,"timestamp":' .. now_text .. '}'  -- as in event_json.lua
  is_usual = type(redis.pcall('XADD', base .. 'events', '*', ':n', total - 1,
    ':alike', '{' .. event, id, #payload <= INLINE and payload or '')) == 'string'
end
if not is_usual then
  local function take_back(key, counter, sum)
    if sum == 1 then
      redis.call('HDEL', key, counter)
    elseif type(sum) == 'number' then
      redis.call('HINCRBY', key, counter, '-1')
    end
  end
  if type(length) == 'number' then redis.call('LPOP', queued_key) end
  take_back(meta_key, 'enqueued_total', enqueued_total)
  take_back(KEYS[1], 'events', total)
-- @include "context"
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
local channel, message = ARGV[2], '{"jobId":"' .. id .. '",' .. event
-- publish() of context.lua
local heard = string.sub(channel, 1, #base) == base and redis.pcall('SPUBLISH', channel, message)
if type(heard) ~= 'number' then redis.pcall('PUBLISH', channel, message) end
return 1
