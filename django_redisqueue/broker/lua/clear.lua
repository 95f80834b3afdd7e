-- clear: empties a list from its oldest end. Finished jobs are deleted; jobs that have not started (queued, scheduled,
-- retrying) are cancelled, so that their records show what happened to them.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 status; 6 how many (1-100); 7 resend window ms; 8 whether a mirror reads the stream
--      (0/1); 9 token; 10 jobs left; 11 whether this is the first step (0/1), as in continuation.lua; then, if the
--      token is '' and not all jobs are meant, the ids of those that are: the oldest in the list as the caller saw it
-- Reply: { examined (0: the list is empty, or another caller continues), removed from the list }
-- A completed job whose result other jobs need moves behind the newest.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "lanes"
-- @include "deletion"
-- @include "continuation"
local queue, status, limit = ARGV[4], ARGV[5], tonumber(ARGV[6])
assert(is_final(status) or status == 'queued' or status == 'scheduled' or status == 'retrying',
  'jobs of this status cannot be cleared')
expect_queue(queue, status, 'priority', 'keyed', 'shares', 'passes', 'parked', 'cancelled', 'meta', 'deleted')
if not may_continue(ARGV[9], ARGV[10], ARGV[11] == '1') then return { 0, 0 } end
write_even_when_full()

local function cancel(id)
  local now_status, lingers = unpack(read(id, 'status', 'lingers'))
  if lingers then stop_lingering(queue, id, now_status) end
  if now_status == status then cancel_idle(id, status, '') end
end

local resend_ms, mirrored_ms = tonumber(ARGV[7]), mirrored_until(ARGV[8] == '1')
local function delete_unless_needed(id)
  local job = read_finished(id)
  if status == 'completed' and (is_waited_for(job) or is_wanted(job)) then return true end
  delete_job(queue, status, job, resend_ms, mirrored_ms)
end

local MEANT, NEWER = 12, 50
local since = is_final(status) and 'finished_ms' or 'enqueued_ms'
local function clear_list()
  local tail, ids = redis.call('LRANGE', queue_key(queue, 'queued'), -limit, -1), {}
  for at = #tail, 1, -1 do ids[#ids + 1] = tail[at] end
  local meant = only_meant(ids, MEANT)
  local count = 0
  -- others are ahead of the rest
  while count < #meant and ids[count + 1] == meant[count + 1] and not is_too_new(ids[count + 1], ARGV[9], since) do
    count = count + 1
    cancel(ids[count])
  end
  if count > 0 then redis.call('LTRIM', queue_key(queue, 'queued'), 0, -1 - count) end
  return count, count
end

-- The first of the jobs that are meant. A few newer ones may be ahead of them, by their priority or their due time.
local function first_meant(list)
  local found, ids = only_meant(redis.call('ZRANGE', queue_key(queue, list), 0, limit - 1 + NEWER), MEANT), {}
  for _, id in ipairs(found) do
    if #ids < limit and not is_too_new(id, ARGV[9], since) then ids[#ids + 1] = id end
  end
  return ids
end

local function clear_sorted(list, act)
  local key = queue_key(queue, list)
  local ids = first_meant(list)
  local leave, stay = {}, {}
  for _, id in ipairs(ids) do table.insert(act(id) and stay or leave, id) end
  if #leave > 0 then redis.call('ZREM', key, unpack(leave)) end
  move_behind_newest(key, stay)
  return #ids, #leave
end

local function clear_keyed()
  local ids = first_meant('keyed')
  for _, id in ipairs(ids) do
    lanes().leave_lane(queue, id, read(id, 'lane')[1] or '')
    cancel(id)
  end
  return #ids, #ids
end

local seen, gone
if is_final(status) then
  seen, gone = clear_sorted(status, delete_unless_needed)
elseif status == 'queued' then
  seen, gone = clear_list()
  if seen == 0 then seen, gone = clear_sorted('priority', cancel) end
  if seen == 0 then seen, gone = clear_keyed() end
else
  seen, gone = clear_sorted(status, cancel)
end
store_continuation(ARGV[9], 'clear', queue, status, seen > 0 and tonumber(ARGV[10]) - seen or 0)
flush()
return { seen, gone }
