-- advance: continues work that other scripts deferred, up to 100 jobs per call, oldest first; checks gathers that are
-- due; and starts the clean-up of workflows whose lifetime is over.
-- KEYS[1] meta
-- ARGV 1-3 context
-- Reply: 1 there is more, 0 there is no more, or none of it can be done now
-- @include "context"
-- @include "emit"
-- @include "gather_plan"
-- @include "end_job"
-- @include "workflow_steps"
-- @include "gather_checks"
expect(gathers_key, 'zset')
expect(newest_key, 'zset')
expect(closed_key, 'set')
write_even_when_full()
for _, workflow_id in ipairs(redis.call('ZRANGEBYSCORE', workflows_key, '-inf', now, 'LIMIT', 0, 10)) do
  local workflow = load_workflow(workflow_id)
  if workflow then start_clean_up(workflow) else redis.call('ZREM', workflows_key, workflow_id) end
end
local more = check_gathers()
advance_some()
flush()
if more then return 1 end
return moved > 0 and redis.call('EXISTS', deferred_key) or 0
