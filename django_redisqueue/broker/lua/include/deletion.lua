-- deletion: deletes the hash of a finished job and subtracts its bytes. The caller removes the id from its list.
-- @include "deleted_parents"
-- @include "tombstone"
-- @include "steps"
-- Deleting a gather's failed follow-up also deletes the results that were kept for its retry.
local function release_gather_results(id)
  local status, key = unpack(read(id, 'status', 'gather'))
  local plan = key and (status == 'failed' or status == 'cancelled') and load_plan(key, gather_of(id))
  if not plan then return end
  drop_results(plan)
  check_later(key, now)
end

-- What the deletion of a finished job reads. An empty `then` means that all dependants have been notified.
local function read_finished(id)
  local status, bytes, lingers, dependants, watched, deleted = unpack(
    read(id, 'status', 'bytes', 'lingers', 'then', 'watched', 'deleted'))
  return { id = id, status = status or deleted and 'deleted', bytes = bytes, lingers = lingers,
    dependants = dependants ~= '' and dependants or nil, watched = watched }
end

local function before_deletion(job)
  local id = job.id
  forget_steps_of(id, job.watched)
  if string.find(id, '^gather_.*%.[tf]%a+$') then release_gather_results(id) end  -- .then, .failure
  if job.dependants and workflow_of_job(id) or has_followers(id, job.watched) then
    defer_notice_of_deletion(id, job.dependants)
  end
end

-- keep_ms: how much longer a repeated enqueue of the job may arrive. Callers end with unlink_hashes().
local doomed = {}
local function delete_hash(queue, status, job, keep_ms)
  if job.status ~= status then return end
  before_deletion(job)
  local writes = pending_writes(queue)
  writes.bytes = writes.bytes - (integer(job.bytes) or 0)
  if keep_ms <= 0 and not job.lingers then
    doomed[#doomed + 1] = job_key(job.id)
  else
    redis.call('UNLINK', job_key(job.id))
    leave_tombstone(job.id, job.lingers, keep_ms)
  end
end

local function unlink_hashes()
  if doomed[1] then redis.call('UNLINK', unpack(doomed)) end
  doomed = {}
end

-- The mirror has read the end of every job that finished before this time (trim.lua). An entry's id begins with Redis's
-- clock, which is ahead of a script's `now` by at most the script's duration. After the clock was set back, ids say
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

-- Deletes a job on request. Until the mirror has read its end the hash stays, because it may be the only place of the
-- arguments, result and error: without `status`, so that all other readers treat it as gone, and with its id among the
-- queue's `deleted`, from which prune deletes it.
local function delete_job(queue, status, job, resend_ms, mirrored_ms)
  local id, finished_ms = job.id, integer(read(job.id, 'finished_ms')[1]) or 0
  if finished_ms < mirrored_ms then
    delete_hash(queue, status, job, finished_ms + resend_ms - now)
    return unlink_hashes()
  end
  if job.status ~= status then return end
  before_deletion(job)
  redis.call('HDEL', job_key(id), 'status', 'then', 'watched')
  redis.call('HSET', job_key(id), 'deleted', 1)
  redis.call('ZADD', queue_key(queue, 'deleted'), whole(finished_ms), id)
end
