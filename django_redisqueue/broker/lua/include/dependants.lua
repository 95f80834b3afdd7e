-- dependants: jobs that wait for a job. `waits` of a waiting job counts its unfinished parents; `then` of a parent
-- names its dependants in its workflow (".4" is a sibling; "*": they are in a separate list) until they are notified,
-- which happens once. Dependants outside the workflow are its followers (followers.lua).
-- @include "workflow_end"
-- @include "notices"
-- @include "callback"
-- @include "gather"
-- Parents of a job have finished (one, unless `done` says how many), or, with `skips`, never will: that is the reason
-- to cancel the job.
local function notify(id, skips, done)
  local status, waits = unpack(read(id, 'status', 'waits'))
  if not status then return end
  local left = math.max(0, (integer(waits) or 0) - (done or 1))
  local job = status == 'waiting' and (left == 0 or skips) and read_waiting(id)
  if job and not skips and is_sound(job.queue or 'default') then
    job.parents_done = true
    return release_waiting(id, job)
  end
  redis.call('HSET', job_key(id), 'waits', text(left))
  if job and skips then
    cancel_waiting(id, job, skips, true)
  elseif job then
    defer('free:' .. id)
  end
end

-- Removes up to `budget` names of dependants from a parent. Returns them, and whether there are more.
local function take_dependants(id, dependants)
  local names = {}
  if dependants == '*' then
    if is_list(then_key(id)) then names = redis.call('LPOP', then_key(id), budget) or {} end
    if redis.call('TYPE', then_key(id)).ok == 'list' then return names, true end
  else
    for name in string.gmatch(dependants, '%S+') do names[#names + 1] = name end
    if #names > budget then
      redis.call('HSET', job_key(id), 'then', table.concat(names, ' ', budget + 1))
      return { unpack(names, 1, budget) }, true
    end
  end
  redis.call('HDEL', job_key(id), 'then')
  return names, false
end

-- Notifies up to `budget` dependants of a parent, or notes them for notify_noted(), which the caller calls before it
-- returns. Returns whether that was all.
local function notify_dependants(id, dependants, skips)
  if budget <= 0 then return false end
  local names, more = take_dependants(id, dependants)
  budget, moved = budget - #names, moved + #names
  local workflow_id = workflow_id_of(id)
  for _, name in ipairs(names) do
    if skips then notify(workflow_id .. name, skips) else note_dependant(workflow_id, name) end
  end
  return not more
end

local function on_failure_of(job)
  return job.skips and 'skip' or redis.call('HGET', job_key(job.id), 'on_fail') or 'fail'
end

-- Applies the end of a job to its gather, its workflow and its dependants.
local function after_end(job, status, body)
  local id, letter = job.id, string.byte(job.id, 1)
  if letter == 103 then gather_job_ended(id, status, body) end  -- 'g'
  local workflow = letter == 102 and move_in_workflow(id, job.from or 'processing', status)  -- 'f'
  local dependants = job.dependants
  if not workflow and not dependants then return end
  local policy = status ~= 'completed' and on_failure_of(job)
  if policy == 'fail' then
    if workflow then
      set_workflow_field(workflow, 'fatal', workflow.fatal + 1)
      if workflow.status == 'running' then end_workflow(workflow, 'failed', call_back) end
    end
    return  -- its dependants keep waiting: a retry releases them
  end
  if not dependants then return end
  if workflow and workflow.status == 'building' then return defer('job:' .. id) end  -- they may not exist yet
  local has_result = status == 'completed' and body ~= 'null'
  if workflow and has_result then set_workflow_field(workflow, result_field(id), '') end
  if not notify_dependants(id, dependants, policy == 'skip' and 'skipped') then defer('job:' .. id) end
  notify_noted(notify)
end
