-- prune: lets go of finished jobs, oldest first, id and hash together (LLEN never counts ghosts).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 completed, failed or cancelled; 6 how many to keep; 7 keep for ms;
--      8 resend window ms; 9 cap in bytes for the queue's finished jobs; 10 how many to look at (1-100)
-- Reply: { let go, of them for the byte cap alone, more to do (0/1) }
-- A job stays while a repeated enqueue could still arrive (the resend window), whatever the caps say,
-- except the byte cap, and then it is counted.
-- @include "context"
-- @include "emit"
-- @include "conclude"
-- @include "forget"
local queue, status, keep, ttl_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local resend_ms, max_bytes, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
assert(status == 'completed' or status == 'failed' or status == 'cancelled', 'only finished jobs are pruned')
expect_queue(queue, status, 'meta')
write_even_when_full()

local list, meta = queue_key(queue, status), queue_key(queue, 'meta')
local length = redis.call('LLEN', list)
local bytes = tonumber(redis.call('HGET', meta, 'finished_bytes') or 0)
local tail = redis.call('LRANGE', list, -limit, -1)
local gone, forced = 0, 0
for at = #tail, 1, -1 do
  local id = tail[at]
  local age = now - (tonumber(read(id, 'finished_ms')[1]) or 0)
  local over = bytes + gather(queue).bytes > max_bytes
  local due = age > ttl_ms or length - gone > keep
  if not over and (not due or age <= resend_ms) then break end
  if over and not (due and age > resend_ms) then forced = forced + 1 end
  forget(queue, status, id, 0)
  gone = gone + 1
end
if gone > 0 then redis.call('LTRIM', list, 0, -1 - gone) end
if forced > 0 then redis.call('HINCRBY', meta, 'forced_total', forced) end
flush()
return { gone, forced, gone == #tail and #tail == limit and 1 or 0 }
