-- notices: dependants whose parents have completed. A script notes them first, so that a job with several such parents
-- is read and written once, and released jobs enter their queue in one command.
-- @include "workflow"
-- @include "events"
-- @include "wake"
-- name: of the dependant in its workflow.
local function note_dependant(workflow_id, name)
  local id = workflow_id .. name
  local before = ended_parents[id]
  if not before then noted_ids[#noted_ids + 1], workflow_ids[id] = id, workflow_id end
  ended_parents[id] = (before or 0) + 1
end

-- What jobs released one after another have in common: the end of their queue's list, and their event.
local function note_shared(released, queue, task, seq)
  released.queue, released.task, released.seq = queue, task, seq
  released.event = event_json('queued', queue, task or '', '', '0', seq, '')
  released.lists[queue] = released.lists[queue] or {}
  released.list = released.lists[queue]
end

-- For a job in a workflow of plain jobs, four fields are enough. pcall as in read(), which costs more.
local function read_noted(id, key, workflow)
  if workflow and workflow.plain_queue then
    local row = redis.pcall('HMGET', key, 'status', 'waits', 'task', 'seq')
    if not row.err then return row[1], row[2], row[3], row[4], workflow.plain_queue end
  end
  return unpack(read(id, 'status', 'waits', 'task', 'seq', 'queue', 'priority', 'audit', 'when', 'lane'))
end

-- notify: the function of dependants.lua, for jobs that are not plain.
local function notify_noted(notify)
  if not noted_ids[1] then return end
  local ids, released = noted_ids, { lists = {} }
  noted_ids = {}
  for at = 1, #ids do
    local id = ids[at]
    local key, workflow = job_prefix .. id, workflow_of_job(id)
    local status, waits, task, seq, queue, priority, audit, when, lane = read_noted(id, key, workflow)
    local done = ended_parents[id]
    local left = waits == '1' and 1 - done or (integer(waits) or 0) - done
    queue, ended_parents[id] = queue or 'default', nil
    if status ~= 'waiting' or left > 0 then
      if status then redis.call('HSET', key, 'waits', text(math.max(0, left))) end
    elseif priority or when or lane or queue ~= released.queue and not is_sound(queue) then
      notify(id, nil, done)
    else  -- it enters its queue at the tail, without priority, delay and lane
      moved, seq = moved + 1, seq and text((integer(seq) or 1) + 1) or '2'
      if queue ~= released.queue or task ~= released.task or seq ~= released.seq then
        note_shared(released, queue, task, seq)
      end
      redis.call('HSET', key, 'status', 'queued', 'seq', seq, 'waits', '0')
      released.list[#released.list + 1] = id
      if not audit or audit == 'all' then add_event(id, released.event, '') end  -- no other `audit` wants it (emit.lua)
      if workflow then workflow.waiting, workflow.queued = workflow.waiting - 1, workflow.queued + 1 end
    end
  end
  for queue, list in pairs(released.lists) do
    redis.call('LPUSH', queue_key(queue, 'queued'), unpack(list))
    wake(queue)
  end
end
