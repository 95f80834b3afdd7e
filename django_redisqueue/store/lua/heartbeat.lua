-- heartbeat: renews the lease of all children of one supervisor, in one script a supervisor.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 number of children, then the children; then triples of
--      id, child, lease for the jobs they run (0-100)
-- Reply: { run_id changed or beats were interrupted (0/1), leases lapsed anywhere,
--          {ids whose lease is lost: another holds them, or nobody}, {ids with a pending cancel}, steady_ms }
-- Law 5: `steady_ms` is the instant since which heartbeats have reached this very Redis without a gap (see
-- steady.lua). Renewing is unconditional: a child
-- whose jobs were taken over holds only stale lease numbers, so its new lease harms nobody.
-- When Redis's clock has gone back, leases of the dead would run on for as long as it went: no lease is
-- left longer than a new one.
-- @include "context"
-- @include "unsaid"
-- @include "steady"
local lease_ms, children = tonumber(ARGV[4]), tonumber(ARGV[5])
expect(KEYS[1], 'hash')
expect(workers_key, 'zset')
write_even_when_full()

local last = tonumber(redis.call('HGET', KEYS[1], 'beat_ms'))
if last and now < last then
  local until_ms = whole(now + lease_ms)
  local late = redis.call('ZRANGEBYSCORE', workers_key, '(' .. until_ms, '+inf', 'LIMIT', 0, 1000)
  for _, child in ipairs(late) do redis.call('ZADD', workers_key, until_ms, child) end
end
local steady, reached = since_gaps(lease_ms)
redis.call('HSET', KEYS[1], 'run_id', run_id(), 'beat_ms', now)
if not steady then redis.call('HSET', KEYS[1], 'steady_ms', now) end
if not reached then redis.call('HSET', KEYS[1], 'reached_ms', now) end

for at = 6, 5 + children do redis.call('ZADD', workers_key, whole(now + lease_ms), ARGV[at]) end
local lost, flagged = {}, {}
for at = 6 + children, #ARGV, 3 do
  local f = read(ARGV[at], 'child', 'lease', 'cancel_ms')
  if f[1] ~= ARGV[at + 1] or lease_of('processing', f[2]) ~= ARGV[at + 2] then
    lost[#lost + 1] = ARGV[at]
  elseif f[3] then
    flagged[#flagged + 1] = ARGV[at]
  end
end
local lapsed = redis.call('ZCOUNT', workers_key, '-inf', '(' .. whole(now))
return { steady and 0 or 1, lapsed, lost, flagged, tonumber(redis.call('HGET', KEYS[1], 'steady_ms')) }
