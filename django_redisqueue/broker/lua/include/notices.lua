-- notices: dependants whose parents have completed. A script notes them first, so that a job with several such parents
-- is read and written once, and released jobs enter their queue in one command.
-- @include "workflow"
-- @include "event_json"
local noted_ids, ended_parents = {}, {}  -- dependants in order; how many of its parents each has lost
local function note_dependant(id)
  local before = ended_parents[id]
  if not before then noted_ids[#noted_ids + 1] = id end
  ended_parents[id] = (before or 0) + 1
end

-- Releases a job without priority, delay and lane, at the tail of its queue. Of the values of `audit` (emit.lua) only
-- `all` wants this event.
local last_queue, last_task, last_seq, last_shared
local function release_plain(id, queue, task, seq, audit, released)
  if queue ~= last_queue or task ~= last_task or seq ~= last_seq then
    last_queue, last_task, last_seq = queue, task, seq
    last_shared = event_json('queued', queue, task or '', '', 0, seq, '')
  end
  redis.call('HSET', job_key(id), 'status', 'queued', 'seq', text(seq), 'waits', '0')
  released[queue] = released[queue] or {}
  table.insert(released[queue], id)
  moved = moved + 1
  move_in_workflow(id, 'waiting', 'queued')
  if not audit or audit == 'all' then add_event(id, last_shared, '') end
end

-- notify: the function of dependants.lua, for jobs that are not plain.
local function notify_noted(notify)
  local ids, released = noted_ids, {}
  noted_ids = {}
  for _, id in ipairs(ids) do
    local status, waits, queue, task, seq, priority, audit, when, lane = unpack(
      read(id, 'status', 'waits', 'queue', 'task', 'seq', 'priority', 'audit', 'when', 'lane'))
    local done, left = ended_parents[id], (integer(waits) or 0) - ended_parents[id]
    queue, ended_parents[id] = queue or 'default', nil
    if status ~= 'waiting' or left > 0 then
      if status then redis.call('HSET', job_key(id), 'waits', text(math.max(0, left))) end
    elseif priority or when or lane or not is_sound(queue) then
      notify(id, nil, done)
    else
      release_plain(id, queue, task, (integer(seq) or 1) + 1, audit, released)
    end
  end
  for queue, some in pairs(released) do
    redis.call('LPUSH', queue_key(queue, 'queued'), unpack(some))
    wake(queue)
  end
end
