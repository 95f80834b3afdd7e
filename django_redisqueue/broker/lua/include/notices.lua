-- notices: dependants whose parents have completed. A script notes them first, so that a job with several such parents
-- is read and written once, and released jobs enter their queue in one command.
-- @include "workflow"
-- @include "events"
-- @include "wake"
local function note_dependant(id)
  local before = ended_parents[id]
  if not before then noted_ids[#noted_ids + 1] = id end
  ended_parents[id] = (before or 0) + 1
end

-- Releases a job without priority, delay and lane, at the tail of its queue. Of the values of `audit` (emit.lua) only
-- `all` wants this event. released: ids by queue, and the event that the last job had, which mostly the next one has.
local function release_plain(id, queue, task, seq, audit, released)
  if queue ~= released.queue or task ~= released.task or seq ~= released.seq then
    released.queue, released.task, released.seq = queue, task, seq
    released.event = event_json('queued', queue, task or '', '', 0, seq, '')
    released.ids[queue] = released.ids[queue] or {}
  end
  redis.call('HSET', job_key(id), 'status', 'queued', 'seq', text(seq), 'waits', '0')
  table.insert(released.ids[queue], id)
  moved = moved + 1
  move_in_workflow(id, 'waiting', 'queued')
  if not audit or audit == 'all' then add_event(id, released.event, '') end
end

-- notify: the function of dependants.lua, for jobs that are not plain.
local function notify_noted(notify)
  if not noted_ids[1] then return end
  local ids, released = noted_ids, { ids = {} }
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
  for queue, some in pairs(released.ids) do
    redis.call('LPUSH', queue_key(queue, 'queued'), unpack(some))
    wake(queue)
  end
end
