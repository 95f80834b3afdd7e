-- single_run: reads and checks of the most frequent call (README.md): a child that holds nothing else has completed one
-- first run, or none, and claims one job of its only queue. It makes no function and few tables, and writes nothing.
-- Arguments: 11 the queue, 12 how many runs have completed; of that run 13 the call that claimed it, 15 id, 16 result.
-- @include "counter"
-- @include "fast_path/description"
local child, queue, ended, result = ARGV[4], ARGV[11], ARGV[15], ARGV[16]
local is_usual = ARGV[10] == '1' and ARGV[6] == '0' and ARGV[7] ~= '0' and tonumber(ARGV[8]) <= 0
  and (ARGV[12] == '0' and not ARGV[13] or ARGV[12] == '1' and ARGV[16] and not ARGV[17])
local queued_key, held_key, meta_key, running_key, completed_key, wake_key
if is_usual then
  queued_key, held_key = base .. 'q:' .. queue, base .. 'child:' .. child .. ':processing'
  meta_key, running_key = queued_key .. ':meta', queued_key .. ':processing'
  completed_key, wake_key = queued_key .. ':completed', queued_key .. ':wake'
end

-- The child holds the entry of the run that has ended, and nothing else.
local last_task, last_bytes
if is_usual then
  local held, name, size, grows, of = redis.pcall('LRANGE', held_key, '0', '1'), nil, nil, nil, nil
  if ended then
    name, size, grows, of, last_task = string.match(held[1] or '', '^(%S+) (%d+)(%+?) (%S+) (%S+)$')
    is_usual = name == ARGV[13] .. ':' .. ended and of == queue and not held[2]
    last_bytes = is_usual and size + #result
    if last_bytes and grows == '+' and #result > SHORT then
      last_bytes = last_bytes + estimate_bytes(FIELDS, 0, true) - estimate_bytes(FIELDS, 0, false)
    end
  else
    is_usual = not held.err and not held[1]
  end
end

-- The next job has never run, and all that the child wants.
local started, has_more, task, payload, options
if is_usual then
  local tail, status, seq = redis.pcall('LRANGE', queued_key, '-2', '-1'), nil, nil
  started, has_more = tail[2] or tail[1], tail[2]
  is_usual = not tail.err and (not has_more or ARGV[7] == '1')
  if is_usual and started then
    status, task, payload, options, seq =
      unpack(redis.pcall('HMGET', job_prefix .. started, 'status', 'task', 'payload', 'options', 'seq'))
    is_usual = status == 'queued' and task and payload and not seq and not ('f' < started and started < 'h')
  end
end

-- The queue is not paused and has no lanes and no aging, its counters are numbers, and no work was deferred.
local completed_total, finished_bytes, written, others
if is_usual then
  local meta, paused, keyed, aging = redis.pcall('HMGET', meta_key, 'paused', 'keyed', 'aging', 'completed_total',
    'finished_bytes'), nil, nil, nil
  paused, keyed, aging, completed_total, finished_bytes = unpack(meta)
  written = redis.pcall('HGET', KEYS[1], 'events')
  others = redis.pcall('EXISTS', deferred_key, base .. 'child:' .. child .. ':resent', queued_key .. ':priority',
    queued_key .. ':keyed', queued_key .. ':shares', queued_key .. ':passes', queued_key .. ':parked',
    wake_key, queued_key .. ':failed', queued_key .. ':cancelled', queued_key .. ':waiting',
    queued_key .. ':scheduled', queued_key .. ':retrying')
  is_usual = not meta.err and not paused and not keyed and not aging
    and (not completed_total or is_counter(completed_total)) and (not finished_bytes or is_counter(finished_bytes))
    and is_counter(written) and written % STEP + 2 < STEP and type(others) == 'number'
end

-- Of the keys that EXISTS has counted, there may be those from the wake token on, if no job is due.
local tokens = 0
if is_usual and others > 0 then
  tokens = redis.pcall('LLEN', wake_key)
  if tokens ~= 0 then others = others - 1 end
  for at, name in ipairs(others > 0 and { ':failed', ':cancelled', ':waiting', ':scheduled', ':retrying' } or {}) do
    local _, score = unpack(redis.pcall('ZRANGE', queued_key .. name, '0', '0', 'WITHSCORES'))
    if score and (at <= 3 or tonumber(score) > now) then others = others - 1 end
  end
  is_usual = others == 0 and type(tokens) == 'number'
end

-- The keys that are written have their types, and the set of running jobs needs no other form (skip_list.lua).
if is_usual then
  local running = redis.pcall('ZCARD', running_key)
  is_usual = type(running) == 'number' and tonumber(redis.pcall('ZCARD', completed_key))
    and tonumber(redis.pcall('XLEN', events_key))
    and (running < MANY or redis.call('OBJECT', 'ENCODING', running_key) == 'skiplist')
end
