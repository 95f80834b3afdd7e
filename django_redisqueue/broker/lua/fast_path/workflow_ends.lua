-- workflow_ends: ends of first runs of workflows' jobs on the fast path (README.md). Created with workflow_runs.lua.
-- @include "workflow"
-- @include "notices"
-- Whether nothing has happened to a run beyond what its entry tells. A job that was released had `seq` before it ran,
-- so version 0.1.0 does not shorten its entry for a watcher or a follower.
local function ends_as_usual(id, run)
  local dot = string.find(id, '.', 7, true)
  local workflow_id = dot and string.sub(id, 1, dot - 1)  -- its claim has looked closer
  local workflow = workflow_id and load_workflow(workflow_id)
  workflow_ids[id] = workflow_id
  run.dependants = run.dependants or names_in(run.names)
  return workflow and workflow.status ~= 'building'
    and (run.seq == '2' or redis.pcall('HEXISTS', job_prefix .. id, 'watched') == 0)
end

-- Writes the completion, and notes what it means for the workflow and the dependants, which are notified later
-- (notices.lua). Returns what HSET replies (finish.lua).
local function complete_run(id, run, bytes, result)
  local names, key, size = run.dependants, job_prefix .. id, texts[bytes] or text(bytes)
  local is_deferred, new = #names > budget, nil
  if #names == 0 or is_deferred then
    new = redis.pcall('HSET', key, 'status', 'completed', 'finished_ms', now_text, 'bytes', size, 'result', result)
  else  -- their notification empties `then`
    new = redis.pcall('HSET', key, 'status', 'completed', 'finished_ms', now_text, 'bytes', size, 'result', result,
      'then', '')
  end
  if new ~= 3 then return new end
  local workflow = loaded_workflows[workflow_ids[id]]  -- by ends_as_usual()
  workflow.processing, workflow.completed = workflow.processing - 1, workflow.completed + 1
  if #names == 0 then return new end
  if result ~= 'null' then set_workflow_field(workflow, result_field(id), '') end
  if is_deferred then
    defer('job:' .. id)
    return new
  end
  budget, moved = budget - #names, moved + #names
  for at = 1, #names do note_dependant(workflow.id, names[at]) end
  return new
end
