-- deletion: deletes the hash of a finished job and subtracts its bytes. The caller takes the id off its list.
-- @include "deleted_parents"
-- @include "tombstone"
-- @include "steps"
-- A gather's follow-up that failed takes along the results that were kept for its retry.
local function release_gather_results(id)
  local status, key = unpack(read(id, 'status', 'gather'))
  local plan = key and (status == 'failed' or status == 'cancelled') and load_plan(key, gather_of(id))
  if not plan then return end
  drop_results(plan)
  check_later(key, now)
end

local function before_deletion(id, dependants, watched)
  forget_steps_of(id, watched)
  if string.find(id, '^gather_.*%.[tf]%a+$') then release_gather_results(id) end  -- .then, .failure
  local is_waited_for = dependants and dependants ~= '' and workflow_of_job(id)
  if is_waited_for or has_followers(id, watched) then defer_notice_of_deletion(id, dependants) end
end

-- keep_ms: how much longer a repeated enqueue of the job may arrive.
local function delete_hash(queue, status, id, keep_ms)
  local now_status, bytes, lingers, dependants, watched, deleted = unpack(
    read(id, 'status', 'bytes', 'lingers', 'then', 'watched', 'deleted'))
  if (now_status or deleted and 'deleted') ~= status then return end
  before_deletion(id, dependants, watched)
  redis.call('UNLINK', job_key(id))
  local writes = pending_writes(queue)
  writes.bytes = writes.bytes - (integer(bytes) or 0)
  leave_tombstone(id, lingers, keep_ms)
end

-- The mirror has read the end of every job that finished before this instant (trim.lua). An entry's id begins with
-- Redis's clock, which is ahead of a script's `now` by its length at most. When the clock was set back, ids tell
-- nothing until it has caught up.
local LONGEST_SCRIPT_MS = 1000
local function mirrored_until(has_mirror)
  if not has_mirror then return math.huge end
  local last = redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]
  local position = redis.call('HGET', KEYS[1], 'mirror_position') or '0-0'
  if not last or last[1] == position then return math.huge end
  if tonumber(string.match(last[1], '^%d+')) > now then return 0 end
  return tonumber(string.match(position, '^%d+')) - LONGEST_SCRIPT_MS
end

local function expect_deleted(queue) expect_queue(queue, 'deleted') end

-- Deletes a job on request. Until the mirror has read its end the hash stays, because it may be the only place of the
-- arguments, result and error: without `status`, so that everybody else takes it for gone, and with its id among the
-- queue's `deleted`, from which prune deletes it.
local function delete_job(queue, status, id, resend_ms, mirrored_ms)
  local now_status, finished_text, dependants, watched = unpack(read(id, 'status', 'finished_ms', 'then', 'watched'))
  local finished_ms = integer(finished_text) or 0
  if finished_ms < mirrored_ms then return delete_hash(queue, status, id, finished_ms + resend_ms - now) end
  if now_status ~= status then return end
  before_deletion(id, dependants, watched)
  redis.call('HDEL', job_key(id), 'status', 'then', 'watched')
  redis.call('HSET', job_key(id), 'deleted', 1)
  redis.call('ZADD', queue_key(queue, 'deleted'), whole(finished_ms), id)
end
