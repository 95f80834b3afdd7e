-- single_run: reads and checks of the most frequent call (README.md): a child has completed one first run, or none, and
-- claims one job. It creates few functions and tables, and writes nothing.
-- Arguments: 10 number of queues, from 11 on their names; then how many runs have completed, and for that run the call
-- that claimed it, 1, its id and result.
-- @include "counter"
-- @include "fast_path/description"
local child, held_key, first = ARGV[4], base .. 'child:' .. ARGV[4] .. ':processing', 11 + ARGV[10]
local ended, result = ARGV[first + 3], ARGV[first + 4]
local is_usual = first > 11 and ARGV[6] == '0' and ARGV[7] ~= '0' and tonumber(ARGV[8]) <= 0
  and (not ARGV[first + 1] or ARGV[first] == '1' and not ARGV[first + 5])

-- The child holds the entry of the run that has ended, and may hold others. If it holds only one, its long entry tells
-- that it is a first run, which need not run alone.
local entry, held_besides, last_queue, last_task, last_bytes
if is_usual then
  local held, name, at, size, grows = redis.pcall('LRANGE', held_key, '0', '2'), nil, 1, nil, nil
  is_usual, held_besides = not held.err, #held  -- 2 stand for more
  if ended then
    name = ARGV[first + 1] .. ':' .. ended .. ' '
    while held[at] and string.sub(held[at], 1, #name) ~= name do
      at = at + 1
      if at == 4 then held = redis.call('LRANGE', held_key, '0', '-1') end
    end
    entry, held_besides = held[at], #held - 1
    size, grows, last_queue, last_task = string.match(entry or '', '^%S+ (%d+)(%+?) (%S+) (%S+)$')
    is_usual = size ~= nil
    last_bytes = is_usual and size + #result
    if last_bytes and grows == '+' and #result > SHORT then
      last_bytes = last_bytes + estimate_bytes(FIELDS, 0, true) - estimate_bytes(FIELDS, 0, false)
    end
  end
  if is_usual and held_besides == 1 then
    is_usual = string.find(held[1] == entry and held[2] or held[1], ' ', 1, true) ~= nil
  end
end

-- No queue is paused or has lanes, aging, or jobs other than those of its list and some that are not due. There is one
-- job, or the child wants no more. All keys have their types.
local queue, prefix, started, wakes, running, last_prefix, completed_total, finished_bytes
for at = 11, is_usual and first - 1 or 0 do
  local key = base .. 'q:' .. ARGV[at]
  local tail, tokens, ready = redis.pcall('LRANGE', key, '-2', '-1'), 0, redis.pcall('ZCARD', key .. ':processing')
  local meta, paused, keyed, aging, completed, bytes = redis.pcall('HMGET', key .. ':meta', 'paused', 'keyed', 'aging',
    'completed_total', 'finished_bytes'), nil, nil, nil, nil, nil
  local others = redis.pcall('EXISTS', deferred_key, base .. 'child:' .. child .. ':resent', key .. ':priority',
    key .. ':keyed', key .. ':shares', key .. ':passes', key .. ':parked', key .. ':wake', key .. ':failed',
    key .. ':cancelled', key .. ':waiting', key .. ':scheduled', key .. ':retrying')
  paused, keyed, aging, completed, bytes = unpack(meta)
  is_usual = not (tail.err or meta.err or paused or keyed or aging) and type(others) == 'number'
    and type(ready) == 'number'
  if is_usual and others > 0 then
    tokens = redis.pcall('LLEN', key .. ':wake')
    if tokens ~= 0 then others = others - 1 end
    for n, list in ipairs(others > 0 and { ':failed', ':cancelled', ':waiting', ':scheduled', ':retrying' } or {}) do
      local size = redis.pcall('ZCARD', key .. list)
      local is_harmless = type(size) == 'number' and size > 0
        and (n <= 3 or redis.call('ZCOUNT', key .. list, '-inf', now_text) == 0)  -- none is due
      if is_harmless then others = others - 1 end
      if others == 0 then break end
    end
    is_usual = others == 0 and type(tokens) == 'number'
  end
  if is_usual and tail[1] then
    is_usual = ARGV[7] == '1' or not started and not tail[2]
    if (started or tail[2]) and tokens == 0 then
      wakes = wakes or {}
      wakes[#wakes + 1] = key .. ':wake'
    end
    if not started then started, queue, prefix, running = tail[2] or tail[1], ARGV[at], key, ready end
  end
  if ARGV[at] == last_queue then last_prefix, completed_total, finished_bytes = key, completed or '0', bytes or '0' end
  if not is_usual then break end
end

-- The next job has never run. The set of running jobs keeps its form (skip_list.lua).
local task, payload, options
if is_usual and started then
  local status, seq
  status, task, payload, options, seq =
    unpack(redis.pcall('HMGET', job_prefix .. started, 'status', 'task', 'payload', 'options', 'seq'))
  is_usual = status == 'queued' and task and payload and not seq and not ('f' < started and started < 'h')
    and (running < MANY or redis.pcall('OBJECT', 'ENCODING', prefix .. ':processing') == 'skiplist')
end

-- The counters that it writes are numbers.
if is_usual and ended then
  is_usual = (completed_total == '0' or is_counter(completed_total))
    and (finished_bytes == '0' or is_counter(finished_bytes))
end
