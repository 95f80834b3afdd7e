-- audit: looks for jobs that are processing but whose child no longer exists (its processing list or its
-- lease was deleted by hand) and takes them back. Reads at most 100 a call, oldest claims first.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 MAX_RECOVERIES; 6 queue; 7 claimed after this ms (where the last call
--      ended; 0 to begin)
-- Reply: { ms to go on from (0 at the end), then triples of id, child and what became of it }
-- A claim younger than a lease is left alone: its child may not have had its first heartbeat.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "recover"
local lease_ms, limit, queue = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
expect_queue(queue, 'queued', 'priority', 'processing', 'wake', 'meta', 'failed', 'cancelled')
expect(workers_key, 'zset')
expect(events_key, 'stream')
write_even_when_full()

local known = redis.call('HMGET', KEYS[1], 'run_id', 'steady_ms')
if known[1] ~= string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  or now - tonumber(known[2] or now) < lease_ms then return { 0 } end
local found = redis.call('ZRANGEBYSCORE', queue_key(queue, 'processing'), '(' .. ARGV[7],
  whole(now - lease_ms), 'WITHSCORES', 'LIMIT', 0, 100)
local reply = { #found == 200 and tonumber(found[200]) - 1 or 0 }
for at = 1, #found, 2 do
  local id = found[at]
  local f = redis.call('HMGET', job_key(id), 'status', 'child')
  if f[1] ~= 'processing' then
    local left = gather(queue).left
    left[#left + 1] = id
  elseif not redis.call('ZSCORE', workers_key, f[2]) then
    local outcome = recover(f[2], id, true, false, limit)
    reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = id, f[2], outcome
  end
end
flush()
return reply
