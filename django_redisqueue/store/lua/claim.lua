-- claim: takes queued jobs for a child (see claim_batch.lua), without finishing any.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child, 5 call number, 6 resent (0/1), 7 jobs wanted (0-100; 0 only leaves
--      the wake tokens right), 8 lowest priority, 9 lease ms, 10.. queue names in order
-- Reply: see claim_queues.lua
-- @include "context"
-- @include "announce"
-- @include "wake"
-- @include "claim_queues"
local want = {
  child = ARGV[4], call = ARGV[5], mark = ARGV[5] .. ':', resent = ARGV[6] == '1',
  jobs = math.min(100, tonumber(ARGV[7])), min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
  queues = { unpack(ARGV, 10) },
}
expect(held_key(want.child), 'list')
expect(workers_key, 'zset')
expect_flows()

write_even_when_full()
want.holding = redis.call('LLEN', held_key(want.child))
local reply = claim_queues(want)
flush()
return reply
