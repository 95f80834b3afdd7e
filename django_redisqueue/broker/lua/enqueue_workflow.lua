-- enqueue_workflow: creates the jobs of workflows, up to 100 per call: of several workflows, or part of a large one.
-- The jobs of a workflow become visible together: a workflow that fits into one call starts in it; a larger one is
-- `building` until its last call, and is then started in steps (advance.lua).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 for how many ms an incomplete workflow is kept; 5 number of kinds of jobs; the kinds, 13 fields
--      each (workflow_job_kinds.lua); then for each workflow its id; first call (0/1); last call (0/1); whether it has
--      an outbox row (0/1); how many field-value pairs of the workflow follow; how many jobs; the pairs; then for each
--      job its name (".3"), the number of its kind, and its payload
-- Reply, one code per workflow: 1 accepted, 0 already known (all of it was pushed), -1 unknown (the first call is
--      missing), -2 cleaned up, or about to be, while it still has jobs, which would not be created again; or
--      '<job> <owner> <key>': another job has that job's unique key, so nothing of the workflow was written
-- Repeating a call changes nothing: ids decide. Cost: a few commands per workflow and one or two per job.
-- @include "context"
-- @include "emit"
-- @include "workflow"
-- @include "workflow_end"
-- @include "outbox"
-- @include "create_workflow_jobs"
local function read_workflows(first)
  local found, at = {}, first
  while at <= #ARGV do
    local new = { id = ARGV[at], is_first = ARGV[at + 1] == '1', is_last = ARGV[at + 2] == '1',
      has_row = ARGV[at + 3] == '1', first_field = at + 6, first_job = at + 6 + 2 * ARGV[at + 4] }
    new.total = tonumber(ARGV[at + 5])
    new.last = new.first_job + JOB_FIELDS * new.total - 1
    found[#found + 1], at = new, new.last + 1
  end
  return found
end

-- Returns the code of a workflow that must not be created; otherwise nil, its status, and whether some jobs exist.
local function refusal_of(new, keys)
  local status, cleaning = unpack(redis.call('HMGET', workflow_key(new.id), 'status', 'cleaning'))
  local is_accepted = new.has_row and accepted_before({ new.id })[new.id]
  if status == 'building' and cleaning then return -2 end
  if status and status ~= 'building' and new.has_row then note_accepted({ new.id }) end
  if is_accepted and not status or status and status ~= 'building' then return 0 end
  if not status and not new.is_first then return -1 end
  local some_known = #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
  if not status and some_known then return -2 end
  return conflict_of(new), status, some_known
end

-- Writes a workflow that fits into one call at once, a larger one as `building`. Its counts are then complete, or 0.
-- Returns what a call needs of it.
local function create_workflow(new)
  local total, waiting = new.starts_now and new.total or 0, new.starts_now and new.waiting or 0
  local status, given = new.starts_now and 'running' or 'building', {}
  local fields = { 'status', status, 'made_ms', now_text, 'total', text(total), 'waiting', text(waiting),
    unpack(ARGV, new.first_field, new.first_job - 1) }
  if new.starts_now and plain_queue then add_field(fields, 'plain_queue', plain_queue) end
  redis.call('HSET', workflow_key(new.id), unpack(fields))
  for at = new.first_field, new.first_job - 1, 2 do given[ARGV[at]] = ARGV[at + 1] end
  if new.starts_now then  -- its event is all that is left to do
    return { id = new.id, generation = 0, total = total, completed = 0, failed = 0, cancelled = 0, made_ms = now_text,
      name = given.name or '' }
  end
  redis.call('ZADD', workflows_key, whole(now + tonumber(ARGV[4])), new.id)
  local workflow = note_workflow(new.id, status, waiting)
  note_rest(workflow, total, 0, 0, 0, 0, given.ttl_ms, given.name, now_text)
  return workflow
end

local function push(new)
  local keys = keys_of_jobs(new)
  local code, status, some_known = refusal_of(new, keys)
  if code then return code end
  new.starts_now = new.is_first and new.is_last and not status
  local workflow = not status and create_workflow(new) or load_workflow(new.id)
  local created = create_jobs(new, keys, some_known)
  if not new.starts_now then
    set_workflow_field(workflow, 'total', workflow.total + created)
    workflow.waiting = workflow.waiting + created
  end
  if not new.is_last then return 1 end
  if new.has_row then note_accepted({ new.id }) end
  if not new.starts_now then
    set_workflow_field(workflow, 'status', 'running')
    redis.call('ZREM', workflows_key, new.id)
  end
  emit_workflow(workflow, 'running')
  if not new.starts_now then defer('start:' .. new.id .. ':0') end
  return 1
end

local workflows, codes = read_workflows(read_kinds(5)), {}
for _, new in ipairs(workflows) do check_workflow(new) end
for at, new in ipairs(workflows) do codes[at] = push(new) end
flush()
return codes
