-- workflow: a workflow's state (docs/workflows.md). Its jobs are <workflow id>.<n>; its hash counts them by status, so
-- that their states are known in O(1), and the script that ends the last one sees the end of the workflow.
-- What exceeds the budget of one script is deferred on the list `flows`, for workflow_steps.lua.
-- Every script that includes this ends with flush_workflows().
-- @include "workflow_state"
if not has_expected_workflow_keys then expect_workflow_keys() end  -- else on the fast path, before its writes

-- The workflow of a job, from its id; nil for other jobs.
local function workflow_id_of(id)
  local found = workflow_ids[id]
  if found == nil then
    found = string.match(id, '^(flow_[^.]+)%.%d+$') or false
    workflow_ids[id] = found
  end
  return found or nil
end
local function workflow_key(workflow_id) return base .. 'workflow:' .. workflow_id end
local function workflow_held_key(workflow_id) return workflow_key(workflow_id) .. ':held' end

local function is_list(key)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == 'list'
end

-- Whether its jobs may not start. This includes jobs that return after its clean-up steps.
local function is_held(workflow)
  return workflow.paused or workflow.cleaning or workflow.status ~= 'running' and workflow.status ~= 'completed'
end

-- Numbers by their texts, cached because those of a batch are mostly equal.
local numbers_by_text = setmetatable({}, { __index = function(known, count)
  known[count] = tonumber(count) or 0
  return known[count]
end })

-- The fields of a workflow that few scripts need, mostly those that end it.
local function note_rest(workflow, total, failed, cancelled, fatal, generation, ttl_ms, name, made_ms)
  workflow.total, workflow.failed = numbers_by_text[total or '0'], numbers_by_text[failed or '0']
  workflow.cancelled, workflow.fatal = numbers_by_text[cancelled or '0'], numbers_by_text[fatal or '0']
  workflow.generation, workflow.ttl_ms = numbers_by_text[generation or '0'], numbers_by_text[ttl_ms or '0']
  workflow.name, workflow.made_ms = name or '', made_ms or now_text
end
local read_when_needed = { __index = function(workflow, field)
  note_rest(workflow, unpack(redis.call('HMGET', workflow_key(workflow.id), 'total', 'failed', 'cancelled',
    'fatal', 'generation', 'ttl_ms', 'name', 'made_ms')))
  return rawget(workflow, field)
end }

-- The workflow as a table, with its current counts of jobs and those in Redis (had_…). `dirty` names the other fields
-- that flush_workflows() must write; `queued` is how many more of its jobs are queued than before this script.
-- plain_queue: see workflow_job_kinds.lua.
local function note_workflow(id, status, waiting, processing, completed, paused, cleaning, plain_queue)
  waiting, processing = numbers_by_text[waiting or '0'], numbers_by_text[processing or '0']
  completed = numbers_by_text[completed or '0']
  local workflow = { id = id, status = status, waiting = waiting, processing = processing, completed = completed,
    had_waiting = waiting, had_processing = processing, had_completed = completed, paused = paused or false,
    cleaning = cleaning or false, plain_queue = plain_queue or false, queued = 0, dirty = false }
  loaded_workflows[id] = workflow
  return setmetatable(workflow, read_when_needed)
end

-- Returns false if it is gone or its keys have the wrong type.
local function load_workflow(id)
  local workflow = loaded_workflows[id]
  if workflow ~= nil then return workflow end
  local row = redis.pcall('HMGET', workflow_key(id), 'status', 'waiting', 'processing', 'completed', 'paused_ms',
    'cleaning', 'plain_queue')
  workflow = row[1] and note_workflow(id, unpack(row))
  if workflow and not (is_held(workflow) and not is_list(workflow_held_key(id))) then return workflow end
  loaded_workflows[id] = false
  return false
end

local function set_workflow_field(workflow, field, value)
  workflow[field], workflow.dirty = value, workflow.dirty or {}
  workflow.dirty[field] = true
end

local function workflow_of_job(id)
  local workflow_id = workflow_ids[id] or workflow_id_of(id)
  return workflow_id and (loaded_workflows[workflow_id] or load_workflow(workflow_id))
end

local function add_to_count(workflow, status, by)
  if status == 'waiting' or status == 'queued' or status == 'processing' or status == 'completed' then
    workflow[status] = workflow[status] + by
  elseif status == 'failed' or status == 'cancelled' then  -- counts that are read when a script needs them
    set_workflow_field(workflow, status, workflow[status] + by)
  end
end

-- Counts a transition of a job in its workflow, if it has one. Returns the workflow. The fast path has its own code.
local function move_in_workflow(id, from, to)
  local workflow = workflow_of_job(id)
  if not workflow then return nil end
  add_to_count(workflow, from, -1)
  add_to_count(workflow, to, 1)
  return workflow
end

local function defer(entry)
  redis.call('RPUSH', deferred_key, entry)
  wake_timer()
end

-- Emits a workflow's own transition, with its current counts. Its name is user text, so it is separate from the JSON.
local workflow_listeners  -- the first message of a script tells whether any client listens
local function emit_workflow(workflow, status)
  local event = '{"workflowId":"' .. workflow.id .. '","status":"' .. status .. '","generation":'
    .. text(workflow.generation) .. ',"total":' .. text(workflow.total) .. ',"completed":' .. text(workflow.completed)
    .. ',"failed":' .. text(workflow.failed) .. ',"cancelled":' .. text(workflow.cancelled)
    .. (workflow.paused and ',"paused":true' or '') .. ',"madeMs":' .. workflow.made_ms
    .. ',"timestamp":' .. now_text .. '}'
  append_field(':workflow', event)
  append_field(':name', workflow.name)
  event_count = event_count + 1
  if event_count == MAX_EVENTS then flush_events() end
  if workflow_listeners ~= 0 then workflow_listeners = publish(channel .. ':workflows', event) end
end
