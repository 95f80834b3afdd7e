-- delete_job: deletes a finished job by order of somebody. The caller takes the id off its list.
-- Until the mirror has read its last event the hash stays, because arguments, result and error may stand there
-- alone: without `status`, so that it is gone for everybody else, and with its id among the queue's `deleted`,
-- from which prune lets it go.
-- @include "forget"
-- @include "mirrored"
local function expect_deleted(queue) expect_queue(queue, 'deleted') end

local function delete_job(queue, status, id, resend_ms, mirrored_ms)
  local f = read(id, 'status', 'finished_ms', 'then', 'watched')
  local finished_ms = integer(f[2]) or 0
  if finished_ms < mirrored_ms then return forget(queue, status, id, finished_ms + resend_ms - now) end
  if f[1] ~= status then return end
  tell_of_leaving(id, f[3], f[4])
  redis.call('HDEL', job_key(id), 'status', 'then', 'watched')
  redis.call('HSET', job_key(id), 'deleted', 1)
  redis.call('ZADD', queue_key(queue, 'deleted'), whole(finished_ms), id)
end
