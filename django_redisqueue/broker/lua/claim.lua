-- claim: gives queued jobs to a child (claim_queues.lua), without finishing any.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 call number; 6 sent again (0/1); 7 jobs wanted (0-100; 0 only restores the wake tokens);
--      8 lowest priority; 9 lease ms; 10.. queue names in order
-- Reply: see claim_queues.lua
-- @include "context"
-- @include "events"
-- @include "wake"
-- @include "claim_queues"
local request = {
  child = ARGV[4], call = ARGV[5], mark = ARGV[5] .. ':', resent = ARGV[6] == '1',
  jobs = math.min(100, tonumber(ARGV[7])), min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
  queues = { unpack(ARGV, 10) },
}
expect(processing_key(request.child), 'list')
expect(workers_key, 'zset')
request.is_quiet = expect_workflow_keys(resent_key(request.child))

write_even_when_full()
request.holding = redis.call('LLEN', processing_key(request.child))
local reply = claim_queues(request)
flush()
return reply
