-- requeue: returns failed or cancelled jobs to the tail of their queue as a new generation, with all their attempts; id
-- and history stay. A cancelled id that remains in its list is there already.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue or ''; 5 status or ''; 6 how many (1-100); then the job ids; or with a queue and a status,
--      for the oldest jobs of that list, 7 token; 8 jobs left; 9 whether this is the first step (0/1), as in
--      continuation.lua; then, if the token is '' and not all jobs are meant, the ids of those that are (clear.lua)
-- Reply, one code per job: 1 requeued, 0 not failed or cancelled, -1 unknown, -2 its workflow is cleaned up, -3 its
--      workflow is cancelled, -4 another job has its unique key
-- The oldest are those that ended first; those that cannot be requeued move behind the newest.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "duplicates"
-- @include "lanes"
-- @include "continuation"
local from_list = ARGV[5] ~= ''
local ids = from_list and {} or { unpack(ARGV, 7) }
if from_list then
  if not may_continue(ARGV[7], ARGV[8], ARGV[9] == '1') then return {} end
  assert(ARGV[5] == 'failed' or ARGV[5] == 'cancelled', 'only failed or cancelled jobs can be requeued')
  expect_queue(ARGV[4], ARGV[5])
  for _, id in ipairs(only_meant(redis.call('ZRANGE', queue_key(ARGV[4], ARGV[5]), 0, ARGV[6] - 1), 10)) do
    if not is_too_new(id, ARGV[7], 'finished_ms') then ids[#ids + 1] = id end
  end
end
expect_queues_of(ids)
for _, id in ipairs(ids) do expect_index(read(id, 'options')[1] or '') end
write_even_when_full()

-- Resumes the workflow of a job that is retried, as a new generation. Returns a code if that is impossible.
local function resume_workflow_of(id)
  local workflow_id = workflow_id_of(id)
  if not workflow_id then return nil end
  local workflow = load_workflow(workflow_id)
  if not workflow or workflow.cleaning then return -2 end
  if workflow.status == 'cancelled' then return -3 end
  local on_fail, reason = unpack(read(id, 'on_fail', 'reason'))
  local was_skipped = reason == 'skipped' or reason == 'parent_gone'
  if (on_fail or 'fail') == 'fail' and not was_skipped then
    set_workflow_field(workflow, 'fatal', math.max(0, workflow.fatal - 1))
  end
  if workflow.status == 'running' or workflow.status == 'building' then return nil end
  set_workflow_field(workflow, 'status', 'running')
  set_workflow_field(workflow, 'generation', workflow.generation + 1)
  redis.call('HDEL', workflow_key(workflow_id), 'ended_ms')
  redis.call('ZREM', workflows_key, workflow_id)
  emit_workflow(workflow, 'running')
  defer('held:' .. workflow_id)
end

local function requeue(id)
  local key = job_key(id)
  local status, queue, task, priority, old_seq, audit, old_generation, bytes, lingers, waits, watched, options, lane =
    unpack(read(id, 'status', 'queue', 'task', 'priority', 'seq', 'audit', 'generation', 'bytes', 'lingers', 'waits',
      'watched', 'options', 'lane'))
  queue = queue or 'default'
  if not status then return -1 end
  if status ~= 'failed' and status ~= 'cancelled' then return 0 end
  local unique = has(watched, 'u') and read(id, 'unique')[1]
  if unique and find_conflict(id, unique) then return -4 end
  local refusal = resume_workflow_of(id)
  if refusal then return refusal end
  local seq, back = (integer(old_seq) or 1) + 1, (integer(waits) or 0) > 0 and 'waiting' or 'queued'
  if back == 'waiting' then
    join_waiting(queue, id)
  elseif not lingers then
    line_up(queue, id, tonumber(priority) or 0, false, lane)
  end
  if lingers then increment(queue_key(queue, 'meta'), 'lingering', -1) end
  move_in_workflow(id, status, back)
  local generation = (integer(old_generation) or 0) + 1
  redis.call('HSET', key, 'status', back, 'seq', seq, 'generation', generation, 'child', '', 'ready_ms', now_text)
  redis.call('HDEL', key, 'attempts', 'recoveries', 'delays', 'error', 'reason', 'cancel_ms',
    'finished_ms', 'started_ms', 'first_ms', 'ran', 'due_ms', 'progress', 'bytes', 'lingers',
    'forgiven', 'waits_for', 'parked_ms', 'newer')
  if not from_list then redis.call('ZREM', queue_key(queue, status), id) end
  if has(watched, 'i') then index(id, options) end
  if unique then take_keys(id, unique) end
  local writes = pending_writes(queue)
  writes.bytes = writes.bytes - (integer(bytes) or 0)
  count(queue, 'requeued_total')
  if back == 'queued' then wake(queue) end
  emit(id, back, queue, task or '', '', 0, seq, audit, ',"requeues":' .. generation)
  return 1
end

local codes, refused, leave = {}, {}, {}
for _, id in ipairs(ids) do
  local code = requeue(id)
  codes[#codes + 1] = code
  table.insert(code < -1 and refused or leave, id)
end
if from_list then
  local list = queue_key(ARGV[4], ARGV[5])
  if #leave > 0 then redis.call('ZREM', list, unpack(leave)) end
  move_behind_newest(list, refused)
  store_continuation(ARGV[7], 'requeue', ARGV[4], ARGV[5], #ids > 0 and tonumber(ARGV[8]) - #ids or 0)
end
flush()
return codes
