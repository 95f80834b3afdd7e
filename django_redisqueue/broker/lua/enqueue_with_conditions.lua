-- enqueue_with_conditions: creates jobs with conditions: parents that exist already, a unique key, a lane. Sending
-- an id again changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 whether a job with an unknown parent is created, and cancelled (0/1); 5 whether the jobs have
--      outbox rows (0/1); 6 for how many ms a duplicate's id leads to the other job; 7.. 11 fields per job
--      (1-100 of jobs and their parents): the 8 of enqueue.lua; '' or what a parent's failure means (wait, skip,
--      go_on) with the ids of the parents, separated by spaces; unique or ''; lane or ''
-- Reply, one per job: 1 created, 0 already known, -1 its key holds something other than a job; or, if it was not
--      created, 'parent <id>' names an unknown parent, 'owner <id>' the job that has its unique key, 'other <id>' a
--      job that was sent with the same HTTP request key but another body
-- A completed parent counts as done. A failed or cancelled one is waited for (wait), ends the job at once (skip), or
-- counts as done without a result (go_on). A deleted one counts as permanently failed.
-- @include "context"
-- @include "emit"
-- @include "new_job"
-- @include "end_job"
-- @include "lanes"
-- @include "parents"
-- @include "duplicates"
-- @include "outbox"
-- @include "cancel_job"
local FIRST, STRIDE, allow_missing_parents, has_rows, keep_ms = 7, 11, ARGV[4] == '1', ARGV[5] == '1', ARGV[6]
local accepted, ids = {}, {}
for at = FIRST, #ARGV, STRIDE do
  expect_all(ARGV[at + 1])
  expect_parents(ARGV[at + 8])
  expect_index(ARGV[at + 4])
  if ARGV[at + 9] ~= '' then expect_unique(ARGV[at + 9]) end
  expect_lane(ARGV[at + 1], ARGV[at + 10])
  assert(tonumber(ARGV[at + 5]), 'priority is not a number')
  assert(due_of(ARGV[at + 6]), 'when is not a number')
  if has_rows then ids[#ids + 1] = ARGV[at] end
end
if has_rows then accepted, ids = accepted_before(ids), {} end

local function put(id, queue, priority, status, due, lane)
  if status == 'waiting' then
    join_waiting(queue, id)
  elseif status == 'scheduled' then
    postpone(queue, 'scheduled', id, due)
  else
    line_up(queue, id, tonumber(priority), false, lane ~= '' and lane or nil)
    wake(queue)
  end
end

-- on_conflict: the new job ends at once, or the oldest one makes room.
local function resolve_conflict(queue, lane)
  local choice = string.match(lane, ' !(%S+)$')
  if not choice then return nil end
  lanes().note_numbers(lane)
  local limit, waiting = lanes().crowded_limit(queue, lane)
  if limit and choice == 'discard' then return 'conflict' end
  local oldest = limit and lanes().oldest_of(queue, lane, limit, waiting)
  if oldest then cancel_job(oldest, 'conflict') end
end

local function make(id, queue, task, payload, options, priority, when, audit, after, unique, lane)
  local key, due = job_key(id), due_of(when)
  if accepted[id] then return 0 end
  if redis.call('EXISTS', key) == 1 then
    if redis.call('TYPE', key).ok ~= 'hash' then return -1 end
    local alias = unique ~= '' and redis.call('HGET', key, 'alias')
    return alias and 'owner ' .. alias or 0
  end
  after = with_owners(after)
  local found = read_parents(after, allow_missing_parents)
  if found.unknown then return 'parent ' .. found.unknown end
  local owner, differs, before
  if unique ~= '' then
    local new = { id = id, unique = unique, queue = queue, payload = payload, options = options, lane = lane }
    owner, differs, before = admit(new, keep_ms)
  end
  if owner then return (differs and 'other ' or 'owner ') .. owner end
  local waits = #found.waiting + (before and 1 or 0)
  if waits == 0 and due <= now then found.reason = found.reason or resolve_conflict(queue, lane) end
  local status = (waits > 0 or found.reason) and 'waiting' or due > now and 'scheduled' or 'queued'
  local fields = new_job_fields(status, queue, task, payload, options, priority, audit, unique, lane,
    after ~= '' and 'a' or '')
  note_lane(lane)
  if status == 'waiting' and when ~= '' then add_field(fields, 'when', when) end
  if status == 'scheduled' then add_field(fields, 'due_ms', whole(due)) end
  if before then add_successor(fields, before, waits - 1) elseif waits > 0 then add_field(fields, 'waits', waits) end
  if after ~= '' then add_field(fields, 'after', string.match(after, ' (.*)$')) end
  for _, parent in ipairs(found.reading) do add_field(fields, reader_field(parent), '') end
  redis.call('HSET', key, unpack(fields))
  add_follower(id, found)
  if before then succeed(id, before) end
  if unique ~= '' then take_keys(id, unique) end
  index(id, options)
  put(id, queue, priority, status, due, lane)
  emit_enqueued(id, status, queue, task, payload, options, priority, audit, status == 'scheduled' and due)
  count(queue, 'enqueued_total')
  if found.reason then
    cancel_waiting(id, read_waiting(id), found.reason, found.reason ~= 'conflict' and found.reason)
  end
  return 1
end

local function has_owner(reply) return type(reply) == 'string' and string.sub(reply, 1, 7) ~= 'parent ' end

local replies = {}
for at = FIRST, #ARGV, STRIDE do
  local reply = make(unpack(ARGV, at, at + STRIDE - 1))
  replies[#replies + 1] = reply
  if has_rows and (reply == 0 or reply == 1 or has_owner(reply)) then ids[#ids + 1] = ARGV[at] end
end
if has_rows then note_accepted(ids) end
flush()
return replies
