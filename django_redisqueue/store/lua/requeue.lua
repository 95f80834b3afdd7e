-- requeue: sends failed or cancelled jobs back to the tail of their queue as a new generation, with all
-- their attempts; id and history stay. A cancelled id that lingers in its list is there already.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue or ''; 5 status or '', 6 how many (1-100); then the ids named; or with a queue and
--      a status, for the oldest jobs of that list, 7-9 token, jobs left and whether this is the first step (0/1),
--      as in continuation.lua
-- Reply, one code a job: 1 requeued, 0 not failed or cancelled, -1 not known, -2 its workflow is cleaned
--      up, -3 its workflow is cancelled
-- The oldest are those that ended first; such as cannot be requeued go behind the newest.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "revive"
-- @include "put_off"
-- @include "continuation"
local from_list = ARGV[5] ~= ''
local ids = from_list and {} or { unpack(ARGV, 7) }
if from_list then
  if not may_step(ARGV[7], ARGV[8], ARGV[9] == '1') then return {} end
  assert(ARGV[5] == 'failed' or ARGV[5] == 'cancelled', 'only failed or cancelled jobs can be requeued')
  expect_queue(ARGV[4], ARGV[5])
  ids = redis.call('ZRANGE', queue_key(ARGV[4], ARGV[5]), 0, ARGV[6] - 1)
end
expect_queues_of(ids)
for _, id in ipairs(ids) do expect_index(read(id, 'options')[1] or '') end
write_even_when_full()

local function requeue(id)
  local key = job_key(id)
  local f = read(id, 'status', 'queue', 'task', 'priority', 'seq', 'audit', 'generation', 'bytes', 'lingers',
    'waits', 'watched', 'options')
  local status, queue = f[1], f[2] or 'default'
  if not status then return -1 end
  if status ~= 'failed' and status ~= 'cancelled' then return 0 end
  local refusal = revive(id, status)
  if refusal then return refusal end
  local seq, back = (integer(f[5]) or 1) + 1, (integer(f[10]) or 0) > 0 and 'waiting' or 'queued'
  if back == 'waiting' then join_waiting(queue, id) elseif not f[9] then place(queue, id, tonumber(f[4]) or 0) end
  if f[9] then tally(queue_key(queue, 'meta'), 'lingering', -1) end
  flow_move(id, status, back)
  local generation = (integer(f[7]) or 0) + 1
  redis.call('HSET', key, 'status', back, 'seq', seq, 'generation', generation, 'child', '', 'ready_ms', now_text)
  redis.call('HDEL', key, 'attempts', 'recoveries', 'delays', 'error', 'reason', 'cancel_ms',
    'finished_ms', 'started_ms', 'first_ms', 'ran', 'due_ms', 'progress', 'bytes', 'lingers')
  if not from_list then redis.call('ZREM', queue_key(queue, status), id) end
  if has(f[11], 'i') then index(id, f[12]) end
  local found = gather(queue)
  found.bytes = found.bytes - (integer(f[8]) or 0)
  count(queue, 'requeued_total')
  if back == 'queued' then wake(queue) end
  emit(id, back, queue, f[3] or '', '', 0, seq, f[6], ',"requeues":' .. generation)
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
  put_off(list, refused)
  leave_word(ARGV[7], 'requeue', ARGV[4], ARGV[5], #ids > 0 and tonumber(ARGV[8]) - #ids or 0)
end
flush()
return codes
