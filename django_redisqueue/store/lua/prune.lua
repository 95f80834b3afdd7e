-- prune: lets go of finished jobs, oldest first, id and hash together (ZCARD never counts ghosts).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 completed, failed or cancelled; 6 how many to keep; 7 keep for ms;
--      8 resend window ms; 9 cap in bytes for the queue's finished jobs; 10 how many to look at (1-100);
--      11 whether a mirror reads the stream (0/1)
-- Reply: { let go, of them for the byte cap alone, more to do (0/1) }
-- A job stays while a repeated enqueue could still arrive (the resend window) and until the mirror has
-- read its last event, whatever the caps say, except the byte cap, and then it is counted. One that others
-- wait for, or may yet read the result of, goes behind the newest. The byte cap lets a failed one go nevertheless, and
-- a completed one when its turn comes again: by then whatever was not needed has gone.
-- First those go that somebody has deleted before the mirror had read of them (delete_job.lua).
-- @include "context"
-- @include "emit"
-- @include "conclude"
-- @include "forget"
-- @include "mirrored"
-- @include "put_off"
local queue, status, keep, ttl_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local resend_ms, max_bytes, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
assert(FINAL[status], 'only finished jobs are pruned')
expect_queue(queue, status, 'deleted', 'meta')
write_even_when_full()

local meta, mirrored_ms = queue_key(queue, 'meta'), mirrored_until(ARGV[11] == '1')
local bytes = integer(redis.call('HGET', meta, 'finished_bytes')) or 0
local gone, forced, seen = 0, 0, 0

-- since: its score, by which it was put off if that is not when it ended.
local function stays(which, id, since, over)
  if which ~= 'completed' then return not over and is_waited_for(id) end
  if is_waited_for(id) then return true end  -- they are being told
  return is_wanted(id) and not (over and (integer(read(id, 'finished_ms')[1]) or 0) < since)
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
    local over = bytes + gather(queue).bytes > max_bytes
    local due = (age > ttl_ms or length - #leave > keep) and age > resend_ms and finished_ms < mirrored_ms
    if not over and not due then break end
    if stays(which, id, finished_ms, over) then
      stay[#stay + 1] = id
    else
      if not due then forced = forced + 1 end
      forget(queue, which, id, 0)
      leave[#leave + 1] = id
    end
  end
  if #leave > 0 then redis.call('ZREM', key, unpack(leave)) end
  put_off(key, stay)
  gone, seen = gone + #leave, seen + #leave + #stay
end

prune('deleted', 0, 0)
prune(status, keep, ttl_ms)
local goes_on = gone > 0 or bytes + gather(queue).bytes > max_bytes
if forced > 0 then tally(meta, 'forced_total', forced) end
flush()
return { gone, forced, goes_on and seen == limit and 1 or 0 }
