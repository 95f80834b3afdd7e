-- enqueue_with_conditions: creates jobs with conditions: parents that exist already, a unique key, a lane. Sending
-- an id again changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 whether a job with an unknown parent is created, and cancelled (0/1); 5 whether the jobs have
--      rows in an outbox (0/1); 6.. 11 fields a job (1-100 of jobs and their parents): the 8 of enqueue.lua; '' or
--      what the failure of a parent means (wait, skip, go_on) with the ids of the parents, joined by blanks; unique or
--      ''; lane or ''
-- Reply, one a job: 1 created, 0 already known, -1 its key holds something other than a job; or the id of an unknown
--      parent, and then the job was not created
-- A completed parent counts as done. A failed or cancelled one is waited for (wait), ends the job at once (skip), or
-- counts as done without a result (go_on). A deleted one counts as failed for good.
-- @include "context"
-- @include "emit"
-- @include "end_job"
-- @include "parents"
-- @include "new_job"
-- @include "outbox"
local FIRST, STRIDE, allow_missing_parents, has_rows = 6, 11, ARGV[4] == '1', ARGV[5] == '1'
local accepted, ids = {}, {}
for at = FIRST, #ARGV, STRIDE do
  expect_all(ARGV[at + 1])
  expect_parents(ARGV[at + 8])
  expect_index(ARGV[at + 4])
  assert(tonumber(ARGV[at + 5]), 'priority is not a number')
  assert(due_of(ARGV[at + 6]), 'when is not a number')
  if has_rows then ids[#ids + 1] = ARGV[at] end
end
if has_rows then accepted, ids = accepted_before(ids), {} end

local function put(id, queue, priority, status, due)
  if status == 'waiting' then
    join_waiting(queue, id)
  elseif status == 'scheduled' then
    postpone(queue, 'scheduled', id, due)
  else
    place(queue, id, tonumber(priority))
    wake(queue)
  end
end

local function make(id, queue, task, payload, options, priority, when, audit, after, unique, lane)
  local key, due = job_key(id), due_of(when)
  if accepted[id] then return 0 end
  if redis.call('EXISTS', key) == 1 then return redis.call('TYPE', key).ok == 'hash' and 0 or -1 end
  local found = read_parents(after, allow_missing_parents)
  if found.unknown then return found.unknown end
  local waits = #found.waiting
  local status = (waits > 0 or found.reason) and 'waiting' or due > now and 'scheduled' or 'queued'
  local watched = (after ~= '' and 'a' or '') .. watched_from(options, unique, lane)
  local fields = new_job_fields(status, queue, task, payload, options, priority, audit, watched)
  add_conditions(fields, unique, lane)
  if status == 'waiting' and when ~= '' then add_field(fields, 'when', when) end
  if status == 'scheduled' then add_field(fields, 'due_ms', whole(due)) end
  if waits > 0 then add_field(fields, 'waits', waits) end
  if after ~= '' then add_field(fields, 'after', string.match(after, ' (.*)$')) end
  for _, parent in ipairs(found.reading) do add_field(fields, reader_field(parent), '') end
  redis.call('HSET', key, unpack(fields))
  add_follower(id, found)
  index(id, options)
  put(id, queue, priority, status, due)
  emit_enqueued(id, status, queue, task, payload, options, priority, audit, status == 'scheduled' and due)
  count(queue, 'enqueued_total')
  if found.reason then cancel_waiting(id, read_waiting(id), found.reason, found.reason) end
  return 1
end

local replies = {}
for at = FIRST, #ARGV, STRIDE do
  local reply = make(unpack(ARGV, at, at + STRIDE - 1))
  replies[#replies + 1] = reply
  if has_rows and (reply == 0 or reply == 1) then ids[#ids + 1] = ARGV[at] end
end
if has_rows then note_accepted(ids) end
flush()
return replies
