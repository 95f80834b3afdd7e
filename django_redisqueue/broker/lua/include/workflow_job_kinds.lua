-- workflow_job_kinds: what jobs of workflows have in common, all but id and payload. A call of enqueue_workflow.lua
-- names it once, so most of its jobs cost three arguments, and share the fields of their hashes and their first events.
--   queue, task, options, priority, when, audit: as in enqueue.lua; waits: number of parents; names, parents: of its
--   dependants and parents (`then` and `after`, see dependants.lua); on_fail; joins: names of parents that keep their
--   dependants in a list; unique, lane: as in enqueue_with_conditions.lua
-- @include "emit"
-- @include "new_job"
-- @include "job_size"
local KIND_FIELDS = 13  -- arguments per kind
local function kind_from(at)
  local queue, task, options, priority, when, audit, waits, names, parents, on_fail, joins, unique, lane =
    unpack(ARGV, at, at + KIND_FIELDS - 1)
  return { queue = queue, task = task, options = options, priority = priority, when = when, audit = audit,
    waits = waits, names = names, parents = parents, on_fail = on_fail, joins = joins, unique = unique, lane = lane,
    starts = waits == '0' and when == '',  -- with its workflow, if that starts at once
    is_delayed = waits == '0' and when ~= '', made = 0,
    is_plain = options == '' and priority == '0' and audit == '' and joins == '' and unique == '' and lane == '' }
end

local kinds = {}  -- by their numbers, as text
-- The queue of all jobs of the call, if they are plain, without delays, and have no parents whose names turn their
-- hashes into tables; otherwise false. The workflow stores it, because the jobs of most workflows can then be read by
-- fewer fields (notices.lua, workflow_runs.lua).
local plain_queue
-- Returns where the arguments continue.
local function read_kinds(first)
  local at = first + 1
  for number = 0, ARGV[first] - 1 do
    local kind = kind_from(at)
    kinds[text(number)], at = kind, at + KIND_FIELDS
    local is_plain = kind.is_plain and kind.when == '' and #kind.parents <= SHORT
      and (number == 0 or kind.queue == plain_queue)
    plain_queue = is_plain and kind.queue
  end
  return at
end

local PAYLOAD_AT = 4  -- where `fields` of a kind has the payload
local function fields_of(kind, status)
  local fields = new_job_fields(status, kind.queue, kind.task, '', kind.options, kind.priority, kind.audit, kind.unique,
    kind.lane)
  if kind.when ~= '' then add_field(fields, 'when', kind.when) end
  if kind.waits ~= '0' then add_field(fields, 'waits', kind.waits) end
  if kind.names ~= '' then add_field(fields, 'then', kind.names) end
  if kind.parents ~= '' then add_field(fields, 'after', kind.parents) end
  if kind.on_fail ~= '' then add_field(fields, 'on_fail', kind.on_fail) end
  return fields
end

-- The status of its new jobs, mostly that of the previous one. `event` is the one of plain jobs.
local function set_status(kind, status)
  kind.status, kind.fields = status, fields_of(kind, status)
  kind.event = kind.is_plain and event_json(status, kind.queue, kind.task, '', '0', '1', '')
end

local function count_made()
  local made = {}
  for _, kind in pairs(kinds) do made[kind.queue] = (made[kind.queue] or 0) + kind.made end
  for queue, jobs in pairs(made) do
    if jobs > 0 then count_enqueued(queue, jobs) end
  end
end
