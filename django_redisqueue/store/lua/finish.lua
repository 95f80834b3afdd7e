-- finish: settles a batch of outcomes and claims the next batch, in one round trip.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child, 5 call number, 6 resent (0/1), 7 jobs wanted (0-100), 8 lowest priority,
--      9 lease ms, 10 number of queues, then the queue names, then 6 fields an outcome:
--      id, lease, call that claimed it, verdict, body, detail (see settle.lua)
-- Reply: { {a settle code an outcome}, the reply of claim_queues.lua }
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "advance_some"
-- @include "promote"
-- @include "settle"
-- @include "claim_batch"
-- @include "claim_queues"
local want = {
  child = ARGV[4], call = ARGV[5], resent = ARGV[6] == '1', jobs = math.min(100, tonumber(ARGV[7])),
  min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
  queues = { unpack(ARGV, 11, 10 + tonumber(ARGV[10])) },
}
local outcomes = 11 + tonumber(ARGV[10])
for _, queue in ipairs(want.queues) do expect_all(queue) end
expect(held_key(want.child), 'list')
expect(workers_key, 'zset')
expect(events_key, 'stream')
for at = outcomes, #ARGV, 6 do look(ARGV[at]) end

write_even_when_full()
local codes = {}
for at = outcomes, #ARGV, 6 do
  codes[#codes + 1] = settle(want.child, ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3],
    ARGV[at + 4], ARGV[at + 5])
end
drop_held(want.child)
if want.jobs == 0 then
  flush()
  return { codes, { tonumber(want.call), {}, {}, 0 } }
end
flush_lists()  -- a job that was handed back may be claimed again; workflows are written once, at the end
want.holding = redis.call('LLEN', held_key(want.child))
local claim = claim_queues(want)
flush()
return { codes, claim }
