-- workflow_end: the end of a workflow, and the one place that writes its counts.
-- on_end: the function of callback.lua, which creates the job for that end
-- @include "workflow"
local function end_workflow(workflow, status, on_end)
  set_workflow_field(workflow, 'status', status)
  set_workflow_field(workflow, 'ended_ms', now)
  if workflow.ttl_ms > 0 then redis.call('ZADD', workflows_key, whole(now + workflow.ttl_ms), workflow.id) end
  emit_workflow(workflow, status)
  publish(base .. 'done:' .. workflow.id, status)
  local which = status == 'completed' and 'complete' or status == 'failed' and 'failure'
  local key = workflow_key(workflow.id)
  if not which or redis.call('HEXISTS', key, which .. '_task') == 0 then return end
  on_end(key, which, workflow.id .. '.' .. which .. text(workflow.generation))
end

-- Starts its clean-up, which continues in steps. A retry can no longer resume the workflow (requeue.lua).
local function start_clean_up(workflow)
  redis.call('ZREM', workflows_key, workflow.id)
  redis.call('HSET', workflow_key(workflow.id), 'cleaning', 1)
  workflow.cleaning = '1'
  defer('clean:' .. workflow.id .. ':0')
end

-- No retry revives a job whose workflow is cancelled or cleaned up, so no job may keep waiting for one.
local function is_past_retry(id)
  local workflow_id = workflow_id_of(id)
  if not workflow_id then return false end
  local workflow = load_workflow(workflow_id)
  return not workflow or workflow.status == 'cancelled' or workflow.cleaning
end

-- All waiting jobs wait for failed ones. False if some are held, because those are about to be released.
local function is_stuck(workflow, ended)
  return workflow.fatal > 0 and not workflow.paused and ended + workflow.waiting >= workflow.total
    and redis.call('EXISTS', workflow_held_key(workflow.id)) == 0
end

local function may_have_ended(workflow)
  return workflow.status == 'running' and workflow.processing <= 0 and workflow.queued <= 0
end

local function has_changed(workflow)
  return workflow.processing ~= workflow.had_processing or workflow.completed ~= workflow.had_completed
    or workflow.waiting ~= workflow.had_waiting or workflow.dirty
end

local function add_changed(fields, at, name, count, before)
  if count == before then return at end
  fields[at + 1], fields[at + 2] = name, text(count)
  return at + 2
end

-- fields: a table that is reused for each workflow, because growing one costs as much as a command.
local function write_workflow(workflow, fields)
  local waiting, processing, completed = workflow.waiting, workflow.processing, workflow.completed
  local at = add_changed(fields, 0, 'waiting', waiting, workflow.had_waiting)
  at = add_changed(fields, at, 'processing', processing, workflow.had_processing)
  at = add_changed(fields, at, 'completed', completed, workflow.had_completed)
  if workflow.dirty then
    for name in pairs(workflow.dirty) do
      local value = workflow[name]
      fields[at + 1], fields[at + 2] = name, type(value) == 'number' and text(value) or value
      at = at + 2
    end
  end
  redis.call('HSET', workflow_key(workflow.id), unpack(fields, 1, at))
  workflow.had_waiting, workflow.had_processing, workflow.had_completed = waiting, processing, completed
  workflow.dirty = false
end

local function flush_workflows(on_end)
  local fields = {}
  for _, workflow in pairs(loaded_workflows) do
    if workflow and has_changed(workflow) then
      if may_have_ended(workflow) then
        local ended = workflow.completed + workflow.failed + workflow.cancelled
        if ended >= workflow.total or is_stuck(workflow, ended) then
          end_workflow(workflow, workflow.fatal > 0 and 'failed' or 'completed', on_end)
        end
      end
      write_workflow(workflow, fields)
    end
  end
end
