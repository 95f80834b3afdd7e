-- prune: deletes finished jobs, oldest first, id and hash together (ZCARD never counts deleted jobs).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 completed, failed or cancelled; 6 how many to keep; 7 for how many ms to keep them;
--      8 resend window ms; 9 cap in bytes for the queue's finished jobs; 10 how many to examine (1-100);
--      11 whether a mirror reads the stream (0/1)
-- Reply: { deleted, how many of them only because of the byte cap, whether there is more to do (0/1) }
-- Whatever the caps say, a job stays while a repeated enqueue may still arrive (the resend window) and until the mirror
-- has read its end. The byte cap overrides that, and then the job is counted. A job that others wait for, or whose
-- result they may still read, moves behind the newest. The byte cap deletes a failed one nevertheless, and a completed
-- one when its turn comes again: by then everything that no other job needs is gone.
-- Jobs that were deleted on request before the mirror had read their end (deletion.lua) go first.
-- @include "context"
-- @include "emit"
-- @include "end_job"
-- @include "deletion"
local queue, status, keep, ttl_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local resend_ms, max_bytes, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
assert(is_final(status), 'only finished jobs are pruned')
expect_queue(queue, status, 'deleted', 'meta')
write_even_when_full()

local meta, mirrored_ms = queue_key(queue, 'meta'), mirrored_until(ARGV[11] == '1')
local bytes = integer(redis.call('HGET', meta, 'finished_bytes')) or 0
local gone, forced, seen = 0, 0, 0

-- since: its score, which is later than its end if it moved behind the newest before.
local function stays(which, job, since, over)
  if which ~= 'completed' then return not over and is_waited_for(job) end
  if is_waited_for(job) then return true end  -- they are being notified
  return is_wanted(job) and not (over and (integer(read(job.id, 'finished_ms')[1]) or 0) < since)
end

local function prune(which, keep, ttl_ms)
  if seen == limit then return end
  local key = queue_key(queue, which)
  local length = redis.call('ZCARD', key)
  local oldest = redis.call('ZRANGE', key, 0, limit - seen - 1, 'WITHSCORES')  -- by when they ended
  local leave, stay = {}, {}
  for at = 1, #oldest, 2 do
    local id, finished_ms = oldest[at], math.floor(tonumber(oldest[at + 1]))
    local age = now - finished_ms
    local over = bytes + pending_writes(queue).bytes > max_bytes
    local due = (age > ttl_ms or length - #leave > keep) and age > resend_ms and finished_ms < mirrored_ms
    if not over and not due then break end
    local job = read_finished(id)
    if stays(which, job, finished_ms, over) then
      stay[#stay + 1] = id
    else
      if not due then forced = forced + 1 end
      delete_hash(queue, which, job, 0)
      leave[#leave + 1] = id
    end
  end
  unlink_hashes()
  if #leave > 0 then redis.call('ZREM', key, unpack(leave)) end
  move_behind_newest(key, stay)
  gone, seen = gone + #leave, seen + #leave + #stay
end

prune('deleted', 0, 0)
prune(status, keep, ttl_ms)
local goes_on = gone > 0 or bytes + pending_writes(queue).bytes > max_bytes
if forced > 0 then increment(meta, 'forced_total', forced) end
flush()
return { gone, forced, goes_on and seen == limit and 1 or 0 }
