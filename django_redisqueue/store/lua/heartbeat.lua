-- heartbeat: renews the lease of all children of one supervisor, in one script a supervisor.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 number of children, then the children; then ids they run (0-100)
-- Reply: { run_id changed or beats were interrupted (0/1), leases lapsed anywhere,
--          {children whose lease had lapsed or was gone}, {ids with a pending cancel} }
-- Law 5: `steady_ms` is the instant since which this very Redis has been beaten without a gap; nobody
-- reaps before one whole lease has passed since. A gap longer than half a lease counts as an outage,
-- for whichever side it was on. Renewing is unconditional: a child whose jobs were taken over holds
-- only stale lease numbers, so its new lease harms nobody.
-- @include "context"
local lease_ms, children = tonumber(ARGV[4]), tonumber(ARGV[5])
expect(workers_key, 'zset')
write_even_when_full()

local run_id = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local known = redis.call('HMGET', KEYS[1], 'run_id', 'beat_ms', 'steady_ms')
local interrupted = known[1] ~= run_id or not known[3] or now - tonumber(known[2]) > lease_ms / 2
redis.call('HSET', KEYS[1], 'run_id', run_id, 'beat_ms', now)
if interrupted then redis.call('HSET', KEYS[1], 'steady_ms', now) end

local lost, flagged = {}, {}
for at = 6, 5 + children do
  local deadline = redis.call('ZSCORE', workers_key, ARGV[at])
  if not deadline or tonumber(deadline) < now then lost[#lost + 1] = ARGV[at] end
  redis.call('ZADD', workers_key, whole(now + lease_ms), ARGV[at])
end
for at = 6 + children, #ARGV do
  if redis.call('HEXISTS', job_key(ARGV[at]), 'cancel_ms') == 1 then flagged[#flagged + 1] = ARGV[at] end
end
return { interrupted and 1 or 0, redis.call('ZCOUNT', workers_key, '-inf', '(' .. whole(now)), lost, flagged }
