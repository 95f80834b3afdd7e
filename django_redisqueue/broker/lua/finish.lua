-- finish: records the outcomes of a batch and claims the next batch, in one round trip.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 call number; 6 sent again (0/1); 7 jobs wanted (0-100); 8 lowest priority; 9 lease ms;
--      10 number of queues; then the queue names; then the first runs that have completed (fast_path/finish.lua); then
--      5 fields for each other outcome (outcome.lua): id, lease, kind, body, detail
-- Reply: { {number and code (outcome.lua) of each outcome that was not simply accepted}, reply of claim_queues.lua }
-- @include "context"
-- @include "trim_index"
-- @include "event_json"
-- @include "fast_path/single_run"

-- The first writes double as checks, at half the price: each is refused as a read would be. Those before it are then
-- undone, except the lease and the result, which finish_batch() may write again.
local events, total, written, listed = ended and started and 2 or (ended or started) and 1 or 0, nil, nil, nil
local last_event = ended and is_usual and event_json('completed', last_queue, last_task, child, '1', '3', '')
local next_event = started and is_usual and event_json('processing', queue, task, child, '1', '2', '')
if is_usual and events > 0 then
  total = redis.pcall('HINCRBY', KEYS[1], 'events', events == 2 and '2' or '1')
  is_usual = type(total) == 'number' and total > events and total % STEP >= events  -- the trim index gets no entry
end
if is_usual and events > 0 then
  local value = ended and #result <= INLINE and result or ''
  if events == 2 then
    written = redis.pcall('XADD', events_key, '*', ':n', total - 2, ':alike', last_event, ended, value,
      ':alike', next_event, started, '')
  else
    written = redis.pcall('XADD', events_key, '*', ':n', total - 1, ':alike', last_event or next_event,
      ended or started, value)
  end
  is_usual = type(written) == 'string'
end
if is_usual and ended then
  listed = redis.pcall('ZADD', last_prefix .. ':completed', 'NX', string.format('%s.%03d', now_text, micros), ended)
  is_usual = listed == 1
end
if is_usual and started then
  local deadline = string.format('%d', now + ARGV[9])
  is_usual = type(redis.pcall('ZADD', workers_key, 'GT', deadline, child)) == 'number'
end
if is_usual and ended then
  local new = redis.pcall('HSET', job_prefix .. ended, 'status', 'completed', 'finished_ms', now_text,
    'bytes', string.format('%d', last_bytes), 'result', result)
  is_usual = new == 3
  if new == 4 then redis.call('DEL', job_prefix .. ended) end
end
if not is_usual then
  if listed == 1 then redis.call('ZREM', last_prefix .. ':completed', ended) end
  if type(written) == 'string' then redis.call('XDEL', events_key, written) end
  if total == events then
    redis.call('HDEL', KEYS[1], 'events')
  elseif type(total) == 'number' then
    redis.call('HINCRBY', KEYS[1], 'events', -events)
  end
-- @include "fast_path/batch"
  return finish_batch()
end

if ended then
  redis.call('ZREM', last_prefix .. ':processing', ended)
  redis.call('HSET', last_prefix .. ':meta', 'completed_total', string.format('%d', completed_total + 1),
    'finished_bytes', string.format('%d', finished_bytes + last_bytes))
  if not started or held_besides > 0 then redis.call('LREM', held_key, '1', entry) end
end
if started then
  local description = describe_run(payload, options, queue, task, child)
  redis.call('HSET', job_prefix .. started, 'status', 'processing', 'child', child, 'started_ms', now_text)
  redis.call('ZADD', prefix .. ':processing', now_text, started)
  redis.call('RPOP', prefix)
  if ended and held_besides == 0 then
    redis.call('LSET', held_key, '0', ARGV[5] .. ':' .. started .. description)
  else
    redis.call('RPUSH', held_key, ARGV[5] .. ':' .. started .. description)
  end
  for _, key in ipairs(wakes or {}) do redis.call('LPUSH', key, '1') end
end

-- The first PUBLISH tells whether any client listens.
local listeners = ended and publish_event(ended, last_event)
if started and listeners ~= 0 then publish_event(started, next_event) end
if not started then return { {}, { tonumber(ARGV[5]), {}, {}, 0, {}, {} } } end
return { {}, { tonumber(ARGV[5]), {}, {}, 0, { queue .. ' 1 0 0 ' .. task, options or '' }, {}, started, payload, 0 } }
