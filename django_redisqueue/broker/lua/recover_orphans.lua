-- recover_orphans: recovers jobs that are processing but that no reap would find, because a processing list, a lease or
-- a hash was deleted or overwritten manually. Reads at most 100 per call, oldest claims first.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 MAX_RECOVERIES; 6 queue; 7 position: 0 to begin, else as replied
-- Reply: { position to continue from (0 at the end), then triples of id, child and outcome: 'lost' if the job's hash is
--      gone, else see recover.lua }
-- A claim younger than a lease is ignored, because its child may not have sent its first heartbeat yet. A child without
-- a lease whose processing list can be read gets one more lease: it renews it, or it is reaped.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "recover"
-- @include "steady"
local lease_ms, limit, queue = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
local first = math.max(0, tonumber(ARGV[7]) - 1)  -- position in the list by claim ms, counted from 1
expect_all(queue)
expect(workers_key, 'zset')
if reaping_delay_ms(lease_ms) > 0 then return { 0 } end

write_even_when_full()
local claims = redis.call('ZRANGE', queue_key(queue, 'processing'), first, first + 99, 'WITHSCORES')
local reply, is_last = { 0 }, #claims < 200
local function report(id, child, outcome)
  reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, child, outcome
end
local function drop(id)
  local left = pending_writes(queue).left
  left[#left + 1] = id
end

for at = 1, #claims, 2 do
  local id = claims[at]
  if tonumber(claims[at + 1]) > now - lease_ms then
    is_last = true
    break
  end
  local status, child, its_queue = unpack(read(id, 'status', 'child', 'queue'))
  child = child or ''
  if not status then
    drop(id)
    report(id, '', 'lost')
  elseif status ~= 'processing' or (its_queue or 'default') ~= queue then
    drop(id)
  elseif not redis.call('ZSCORE', workers_key, child) then
    if (length_of(processing_key(child), 'list') or 0) > 0 then
      redis.call('ZADD', workers_key, whole(now + lease_ms), child)
    else
      report(id, child, recover(child, id, true, false, limit))
    end
  end
end
if not is_last then reply[1] = first + 101 - #pending_writes(queue).left end
flush()
return reply
