-- fire: advances a schedule past a due time, and creates the job for one: both or neither.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 name; 5 the schedule's next due time in ms, as the caller knows it; 6 digest of its definition,
--      as the caller knows it; 7 the due time after that, or '' (none); 8 how many due times get no job; 9 due time
--      that gets one in ms, or ''; 10 id of the job
-- Reply: 1 the job is created, 2 it is left out because the previous one has not finished or another has its unique
--      key, 3 there was nothing to create (no due time, or the job is known), 0 the schedule has advanced, changed or
--      stopped: nothing was done
-- The caller computes the due times; a second caller finds that the schedule has advanced. The id is derived from the
-- schedule and the due time, so even a schedule that went back in time creates no job twice.
-- @include "context"
-- @include "emit"
-- @include "cancel_job"
-- @include "callback"
-- @include "schedule"
local name, cursor, digest, next_ms, missed, due, id = unpack(ARGV, 4, 10)
local key = schedule_key(name)
assert(next_ms == '' or tonumber(next_ms), 'next_ms is not a number')
assert(tonumber(missed) and (due == '' or tonumber(due)), 'missed or due is not a number')
expect_schedules(name)
local known_cursor, known_digest, paused, overlap, last_job, last_due, queue = unpack(redis.call('HMGET', key,
  'next_ms', 'digest', 'paused', 'overlap', 'last_job', 'last_due_ms', 'job_queue'))
if known_cursor ~= cursor or known_digest ~= digest or paused then return 0 end

local function is_unfinished(job_id)
  local status = job_id and read(job_id, 'status')[1]
  return status and not is_final(status)
end

local waits = due ~= '' and is_unfinished(last_job) and overlap
if due ~= '' then expect_all(queue or 'default') end
if waits == 'cancel' then expect_queues_of({ last_job }) end

-- The first write is one that a full Redis refuses, because a cancel frees memory and would be let through.
redis.call('HSET', key, 'next_ms', next_ms)
local reply = 3
if due ~= '' and redis.call('EXISTS', job_key(id)) == 0 then
  reply = waits == 'skip' and 2 or 1
  if waits == 'cancel' then cancel_job(last_job, '') end
end
if reply == 1 and not call_back(key, 'job', id, nil, waits == 'cancel') then reply = 2 end
if reply == 1 then
  if last_due then redis.call('HSET', job_key(id), 'previous_due_ms', last_due) end
  redis.call('HSET', key, 'last_due_ms', due, 'last_job', id, 'last_ms', now_text)
end
for counter, by in pairs({ fired = reply == 1 and 1 or 0, skipped = reply == 2 and 1 or 0, missed = missed }) do
  if tonumber(by) > 0 then increment(key, counter, by) end
end
sort_schedule(name)
flush()
return reply
