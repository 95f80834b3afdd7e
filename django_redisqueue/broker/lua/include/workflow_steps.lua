-- workflow_steps: work on many jobs of workflows, within the budget of one script. advance_some() spends the budget on
-- entries of the list `flows`:
--   job:<id>, follow:<id>   a job has ended: notify its dependants, or its followers
--   gone:<id>         a job was deleted: notify the jobs that wait for it
--   free:<id>, end:<id>   release or cancel a job whose queue had a key of the wrong type
--   event:<event>     wake jobs that wait for an event
--   wake:<id> <event> wake one whose queue had a key of the wrong type
--   held:<workflow>   release the jobs that were held
--   start:<workflow>:<n>, cancel:…, clean:…   the same for all jobs of a workflow, from number n on
-- An unfinished entry goes to the end of the list, so that a large workflow does not hold up others.
-- @first_use
-- @include "cancel_job"
-- @include "deleted_parents"
-- @include "waits"
local function cancel_or_defer(id, reason)
  local status, queue = unpack(read(id, 'status', 'queue'))
  if not status then return end
  if not is_sound(queue or 'default') then return defer('end:' .. id) end
  moved = moved + 1
  cancel_job(id, reason)
end

local ACTIONS = {}
function ACTIONS.start(id)
  local status, waits = unpack(read(id, 'status', 'waits'))
  if status == 'waiting' and (tonumber(waits) or 0) == 0 then release_waiting(id, read_waiting(id)) end
end
function ACTIONS.cancel(id) cancel_or_defer(id, '') end
-- Running jobs continue, unless the workflow was cancelled: these steps may have overtaken those of `cancel`.
function ACTIONS.clean(id, workflow)
  local status, cancel_ms = unpack(read(id, 'status', 'cancel_ms'))
  if status ~= 'processing' or workflow.status == 'cancelled' and not cancel_ms then cancel_or_defer(id, 'cleaned') end
  redis.call('UNLINK', then_key(id))
end

-- Applies an action to a range of a workflow's jobs. Returns the entry for the rest, or nil at the end.
local function walk_workflow(act, workflow_id, from)
  local workflow = load_workflow(workflow_id)
  if not workflow then return nil end
  local to = math.min(workflow.total, from + budget)
  for n = from, to - 1 do ACTIONS[act](workflow_id .. '.' .. whole(n), workflow) end
  budget, moved = budget - (to - from), moved + to - from
  if to < workflow.total then return act .. ':' .. workflow_id .. ':' .. whole(to) end
  if act == 'clean' then
    emit_workflow(workflow, 'cleaned')
    loaded_workflows[workflow_id] = false
    redis.call('UNLINK', workflow_key(workflow_id), workflow_held_key(workflow_id))
  end
end

local function release_held(workflow_id)
  local workflow = load_workflow(workflow_id)
  if not workflow or is_held(workflow) or not is_list(workflow_held_key(workflow_id)) then return nil end
  local ids = redis.call('LRANGE', workflow_held_key(workflow_id), 0, budget - 1)
  for _, id in ipairs(ids) do ACTIONS.start(id) end
  redis.call('LTRIM', workflow_held_key(workflow_id), #ids, -1)
  budget, moved = budget - #ids, moved + #ids
  if redis.call('EXISTS', workflow_held_key(workflow_id)) == 1 then return 'held:' .. workflow_id end
  set_workflow_field(workflow, 'status', workflow.status)  -- so that flush_workflows() checks whether it ends
end

local function continue_dependants(id)
  local dependants, status, on_fail, reason = unpack(read(id, 'then', 'status', 'on_fail', 'reason'))
  if not dependants or not is_final(status) then return nil end  -- requeued: its next end notifies the others
  local is_skipped = on_fail == 'skip' or reason == 'skipped' or reason == 'parent_gone'
  if not notify_dependants(id, dependants, status ~= 'completed' and is_skipped and 'skipped') then
    return 'job:' .. id
  end
end

-- Not all of its dependants may exist yet then.
local function is_being_pushed(id)
  local workflow = workflow_of_job(id)
  return workflow and workflow.status == 'building'
end

local function advance_one(entry)
  local kind, rest = string.match(entry, '^(%a+):(.*)$')
  if (kind == 'job' or kind == 'gone') and is_being_pushed(rest) then return entry end
  if kind == 'job' then return continue_dependants(rest) end
  if kind == 'follow' then return not continue_followers(rest) and entry or nil end
  if kind == 'gone' then return not notify_of_deletion(rest) and entry or nil end
  if kind == 'held' then return release_held(rest) end
  if kind == 'free' then return ACTIONS.start(rest) end
  if kind == 'event' then return not wake_all(rest) and entry or nil end
  if kind == 'wake' then return wake_waiting(string.match(rest, '^(%S+) (.*)$')) end
  if kind == 'end' then return cancel_or_defer(rest, '') end
  local workflow_id, from = string.match(rest, '^(.*):(%d+)$')
  return walk_workflow(kind, workflow_id, tonumber(from))
end

local function advance_entries()
  for _ = 1, redis.call('LLEN', deferred_key) do
    if budget <= 0 then return end
    local entry = redis.call('LPOP', deferred_key)
    if not entry then return end
    budget = budget - 1
    local rest = advance_one(entry)
    if rest then redis.call('RPUSH', deferred_key, rest) end
  end
end
local function advance_some()
  advance_entries()
  notify_noted(notify)
end
