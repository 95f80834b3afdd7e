-- new_workflow_job: the hash and the first event of a job that is created with its workflow.
--   at: where its arguments begin (enqueue_workflow.lua)
-- @include "emit"
-- @include "new_job"
-- The hash of a job. One table serves all: a table that grows costs as much as the command.
local hash_fields = { 'task', '', 'payload', '', 'status', '', 'enqueued_ms', now_text }
local function add(n, name, value)
  hash_fields[n + 1], hash_fields[n + 2] = name, value
  return n + 2
end
local function hash_of(at, status)
  local _, queue, task, payload, options, priority, when, audit, waits, names, parents, on_fail, _, unique, lane =
    unpack(ARGV, at, at + 14)
  local watched, n = watched_from(options, unique, lane), 8
  hash_fields[2], hash_fields[4], hash_fields[6] = task, payload, status
  if queue ~= 'default' then n = add(n, 'queue', queue) end
  if priority ~= '0' then n = add(n, 'priority', priority) end
  if options ~= '' then n = add(n, 'options', options) end
  if audit ~= '' then n = add(n, 'audit', audit) end
  if watched ~= '' then n = add(n, 'watched', watched) end
  if audit ~= '' or watched ~= '' and watched ~= 'l' then n = add(n, 'seq', '1') end  -- see implied_hash_fields.lua
  if unique ~= '' then n = add(n, 'unique', unique) end
  if lane ~= '' then n = add(n, 'lane', lane) end
  if when ~= '' then n = add(n, 'when', when) end
  if waits ~= '0' then n = add(n, 'waits', waits) end
  if names ~= '' then n = add(n, 'then', names) end
  if parents ~= '' then n = add(n, 'after', parents) end
  if on_fail ~= '' then n = add(n, 'on_fail', on_fail) end
  return unpack(hash_fields, 1, n)
end

-- The first event of a job. Those of jobs without options mostly have all in common but id and arguments.
local last_status, last_queue, last_task, last_event
local function emit_created(at, status)
  local id, queue, task, payload, options, priority, _, audit = unpack(ARGV, at, at + 7)
  if options ~= '' or priority ~= '0' or audit ~= '' then
    return emit_enqueued(id, status, queue, task, payload, options, priority, audit)
  end
  if status ~= last_status or queue ~= last_queue or task ~= last_task then
    last_status, last_queue, last_task = status, queue, task
    last_event = event_json(status, queue, task, '', '0', '1', '')
  end
  add_event(id, last_event, #payload <= INLINE and payload or '')
end
