-- compact: drops cancelled ids that remain in a queue's list (cancel_job.lua) while no worker claims them. Examines at
-- most 100 ids per call, at the end from which claims take.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 how many may remain
-- Reply: 1 there is more to do, else 0
-- Queued jobs among them move into the ZSET, to the end of the band of priority 0, which claims take before the list,
-- so the order does not change. No status changes, so there is no event.
-- @include "context"
-- @include "place"
-- @include "tombstone"
local queue, allowed = ARGV[4], tonumber(ARGV[5])
expect_all(queue)
local list, meta = queue_key(queue, 'queued'), queue_key(queue, 'meta')
local function is_over()
  return (integer(redis.call('HGET', meta, 'lingering')) or 0) > allowed
end
if not is_over() then return 0 end

write_even_when_full()
local tail = redis.call('LRANGE', list, -100, -1)
for at = #tail, 1, -1 do
  local id = tail[at]
  local status = read(id, 'status')[1]
  if status == 'queued' or not stop_lingering(queue, id, status) then  -- also a lost job, which a claim reports
    local score = 100 * BAND + MIDDLE + increment(meta, 'tail', 1)
    redis.call('ZADD', queue_key(queue, 'priority'), whole(score), id)
  end
end
if #tail > 0 then redis.call('LTRIM', list, 0, -1 - #tail) end
if redis.call('EXISTS', list) == 0 then
  redis.call('HDEL', meta, 'lingering')  -- also a wrong count
  return 0
end
return is_over() and 1 or 0
