-- enqueue_workflow: creates the jobs of a workflow, up to 100 a call. They become visible together: a workflow that
-- fits into one call starts in it; a larger one is `building` until its last call, and is then started in steps
-- (advance.lua).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 workflow id; 5 first call (0/1); 6 last call (0/1); 7 for how many ms an incomplete workflow is
--      kept; 8 whether it has a row in an outbox (0/1); 9 how many field-value pairs of the workflow follow; then the
--      pairs; then 15 fields a job: id, queue, task, payload, options, priority, when, audit (as in enqueue.lua), waits
--      (number of parents), then, after (names of dependants and parents, see dependants.lua), on_fail, joins (names of
--      parents that keep their dependants in a list), unique, lane (as in enqueue_with_conditions.lua)
-- Reply: 1 accepted, 0 already known (all of it was pushed), -1 unknown (the first call is missing), -2 cleaned up, or
--      about to be, while jobs of it still exist that would not be created again; or '<job> <owner> <key>': another job
--      has the unique key of that one, so nothing was written
-- Repeating a call changes nothing: ids decide. Cost: a few commands a job.
-- @include "context"
-- @include "emit"
-- @include "new_job"
-- @include "end_job"
-- @include "lanes"
-- @include "duplicates"
-- @include "outbox"
local id, is_first, is_last, has_row = ARGV[4], ARGV[5] == '1', ARGV[6] == '1', ARGV[8] == '1'
local first_job, STRIDE = 10 + 2 * tonumber(ARGV[9]), 15
expect(workflow_key(id), 'hash')
expect(workflow_held_key(id), 'list')
for at = first_job, #ARGV, STRIDE do expect_all(ARGV[at + 1]) end
for at = first_job, #ARGV, STRIDE do
  expect_index(ARGV[at + 4])
  if ARGV[at + 13] ~= '' then expect_unique(ARGV[at + 13]) end
  if ARGV[at + 14] ~= '' then expect_lane(ARGV[at + 1], ARGV[at + 14]) end
  for parent in string.gmatch(ARGV[at + 12], '%S+') do expect(then_key(id .. parent), 'list') end
end

local status, cleaning = unpack(redis.call('HMGET', workflow_key(id), 'status', 'cleaning'))
local is_accepted = has_row and accepted_before({ id })[id]
if status == 'building' and cleaning then return -2 end
if status and status ~= 'building' and has_row then note_accepted({ id }) end
if is_accepted and not status or status and status ~= 'building' then return 0 end
if not status and not is_first then return -1 end
local keys = {}
for at = first_job, #ARGV, STRIDE do keys[#keys + 1] = job_key(ARGV[at]) end
local some_known = #keys > 0 and redis.call('EXISTS', unpack(keys)) > 0
if not status and some_known then return -2 end
for at = first_job, #ARGV, STRIDE do
  local found = ARGV[at + 13] ~= '' and find_conflict(ARGV[at], ARGV[at + 13])
  if found then return ARGV[at] .. ' ' .. found.owner .. ' ' .. found.key end
end
if not status then
  redis.call('HSET', workflow_key(id), 'status', 'building', 'made_ms', now_text, unpack(ARGV, 10, first_job - 1))
  redis.call('ZADD', workflows_key, whole(now + tonumber(ARGV[7])), id)
end
local workflow = load_workflow(id)
local starts_now = is_first and is_last

local function make(at)
  local job, queue, task, payload, options, priority, when, audit = unpack(ARGV, at, at + 7)
  local key = job_key(job)
  if some_known and redis.call('EXISTS', key) == 1 then return end
  local lane = ARGV[at + 14] ~= '' and ARGV[at + 14] or nil
  local goes = starts_now and ARGV[at + 8] == '0' and when == ''  -- into its queue at once
  local status = goes and 'queued' or 'waiting'
  redis.call('HSET', key, unpack(workflow_job_fields(at, status)))
  if ARGV[at + 13] ~= '' then take_keys(job, ARGV[at + 13]) end
  for parent in string.gmatch(ARGV[at + 12], '%S+') do
    redis.call('RPUSH', then_key(id .. parent), string.sub(job, #id + 1))
  end
  count(queue, 'enqueued_total')
  if lane then note_lane(lane) end
  set_workflow_field(workflow, 'total', workflow.total + 1)
  if goes then
    line_up(queue, job, tonumber(priority), false, lane)
    wake(queue)
  else
    set_workflow_field(workflow, 'waiting', workflow.waiting + 1)
  end
  index_unchecked(job, options)
  emit_enqueued(job, status, queue, task, payload, options, priority, audit)
  if starts_now and not goes and ARGV[at + 8] == '0' then
    release_waiting(job, { queue = queue, task = task, priority = priority, seq = 1, audit = audit, when = when,
      lane = lane })
  end
end

for at = first_job, #ARGV, STRIDE do make(at) end
if is_last then
  if has_row then note_accepted({ id }) end
  set_workflow_field(workflow, 'status', 'running')
  redis.call('ZREM', workflows_key, id)
  emit_workflow(workflow, 'running')
  if not starts_now then defer('start:' .. id .. ':0') end
end
flush()
return 1
