-- workflow: a workflow's state (docs/workflows.md). Its jobs are <workflow id>.<n>; its hash counts them by status, so
-- that their states are known in O(1), and the script that ends the last one sees the end of the workflow.
-- What exceeds the budget of one script is deferred on the list `flows`, for workflow_steps.lua.
-- Every script that includes this ends with flush_workflows().
-- @include "workflow_state"
if not has_expected_workflow_keys then expect_workflow_keys() end  -- else on the fast path, before its writes

-- The workflow of a job, from its id; nil for other jobs, which this must not cost anything.
local workflow_ids = {}
local function workflow_id_of(id)
  if not is_of_workflow(id) then return nil end
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

-- Whether its jobs may not start. This includes jobs that come back after the steps of its clean-up.
local function is_held(workflow)
  return workflow.paused or workflow.cleaning or workflow.status ~= 'running' and workflow.status ~= 'completed'
end

-- The workflow as a table, or false when it is gone or its keys have wrong types. `dirty` names the fields that
-- flush_workflows() is to write.
local function load_workflow(workflow_id)
  if loaded_workflows[workflow_id] ~= nil then return loaded_workflows[workflow_id] end
  local status, total, waiting, processing, completed, failed, cancelled, fatal, paused, generation, ttl_ms, cleaning =
    unpack(redis.pcall('HMGET', workflow_key(workflow_id), 'status', 'total', 'waiting', 'processing', 'completed',
      'failed', 'cancelled', 'fatal', 'paused_ms', 'generation', 'ttl_ms', 'cleaning'))
  local workflow = status and { id = workflow_id, status = status, total = tonumber(total) or 0,
    waiting = tonumber(waiting) or 0, processing = tonumber(processing) or 0, completed = tonumber(completed) or 0,
    failed = tonumber(failed) or 0, cancelled = tonumber(cancelled) or 0, fatal = tonumber(fatal) or 0,
    paused = paused, generation = tonumber(generation) or 0, ttl_ms = tonumber(ttl_ms) or 0, cleaning = cleaning,
    dirty = {} } or false
  if workflow and is_held(workflow) and not is_list(workflow_held_key(workflow_id)) then workflow = false end
  loaded_workflows[workflow_id] = workflow
  return workflow
end

local function set_workflow_field(workflow, field, value)
  workflow[field], workflow.dirty[field] = value, true
end

local function workflow_of_job(id)
  local workflow_id = workflow_id_of(id)
  return workflow_id and load_workflow(workflow_id)
end

local function is_counted(status) return status == 'waiting' or status == 'processing' or is_final(status) end

-- Counts a transition of a job in its workflow, if it has one. Returns the workflow.
local function move_in_workflow(id, from, to)
  local workflow = workflow_of_job(id)
  if not workflow then return nil end
  if is_counted(from) then set_workflow_field(workflow, from, workflow[from] - 1) end
  if is_counted(to) then set_workflow_field(workflow, to, workflow[to] + 1) end
  return workflow
end

local function defer(entry)
  redis.call('RPUSH', deferred_key, entry)
  if redis.call('EXISTS', timer_key) == 0 then redis.call('LPUSH', timer_key, '1') end
end

-- Emits a workflow's own transition, with its present counts. Its name is a user's text and stands beside the JSON.
local function emit_workflow(workflow, status)
  local name, made_ms = unpack(redis.call('HMGET', workflow_key(workflow.id), 'name', 'made_ms'))
  local event = '{"workflowId":"' .. workflow.id .. '","status":"' .. status .. '","generation":'
    .. text(workflow.generation) .. ',"total":' .. text(workflow.total) .. ',"completed":' .. text(workflow.completed)
    .. ',"failed":' .. text(workflow.failed) .. ',"cancelled":' .. text(workflow.cancelled)
    .. (workflow.paused and ',"paused":true' or '') .. ',"madeMs":' .. (made_ms or now_text)
    .. ',"timestamp":' .. now_text .. '}'
  append_field(':workflow', event)
  append_field(':name', name or '')
  event_count = event_count + 1
  if event_count == MAX_EVENTS then flush_events() end
  publish(channel .. ':workflows', event)
end
