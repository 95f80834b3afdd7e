-- control_workflow: pauses, releases, cancels or cleans up a workflow. Changes to its many jobs are made in steps.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 workflow id; 5 pause, release, cancel or clean
-- Reply: 1 done, 0 nothing to do, -1 unknown
-- Pausing touches no job: a claim that finds one of them holds it (slow_claim.lua).
-- @include "context"
-- @include "emit"
-- @include "end_job"
local id, order = ARGV[4], ARGV[5]
expect(workflow_key(id), 'hash')
local workflow = load_workflow(id)
if not workflow then return -1 end
local is_over = workflow.status ~= 'running' and workflow.status ~= 'building'
write_even_when_full()

if order == 'pause' then
  if is_over or workflow.paused then return 0 end
  redis.call('HSET', workflow_key(id), 'paused_ms', now_text)
  emit_workflow(workflow, 'paused')
elseif order == 'release' then
  if not workflow.paused then return 0 end
  redis.call('HDEL', workflow_key(id), 'paused_ms')
  workflow.paused = false
  set_workflow_field(workflow, 'status', workflow.status)  -- so that flush_workflows() checks whether it ends
  emit_workflow(workflow, workflow.status)
  defer('held:' .. id)
elseif order == 'cancel' then
  if workflow.status == 'cancelled' or workflow.status == 'completed' then return 0 end
  end_workflow(workflow, 'cancelled', call_back)
  defer('cancel:' .. id .. ':0')
elseif order == 'clean' then
  if not is_over then return 0 end
  start_clean_up(workflow)
else
  error('control_workflow knows pause, release, cancel and clean')
end
flush()
return 1
