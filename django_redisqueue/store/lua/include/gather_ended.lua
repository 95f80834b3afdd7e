-- gather_ended: the end of one job of a gather: a listener's, or of the one that follows.
-- @include "gathers"
-- What follows has run: the results go their way. A retry by hand of one that failed finds them as long as
-- that job is kept (see gather_checks).
local function follow_ended(plan, status)
  if status ~= 'completed' then
    redis.call('HSET', plan_key(plan.key), 'keep_until_ms', whole(now + plan.keep_ms))
    count_kept(plan, bytes_of_results(plan))
  elseif has_results(plan) then
    redis.call('PEXPIRE', results_key(plan.key), whole(plan.ttl_ms))
  end
  look_again(plan.key, now + plan.ttl_ms)
end

local function gather_job_ended(id, status, body)
  local f = redis.call('HMGET', job_key(id), 'gather', 'listener')
  local plan = f[1] and load_plan(f[1], gather_of(id))
  if not plan then return end
  if not f[2] then return follow_ended(plan, status) end
  if status == 'completed' then return keep_result(plan, f[2], body) end
  check_reach(plan)
end
