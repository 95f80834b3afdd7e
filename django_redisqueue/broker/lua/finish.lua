-- finish: records the outcomes of a batch and claims the next batch, in one round trip.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 call number; 6 sent again (0/1); 7 jobs wanted (0-100); 8 lowest priority; 9 lease ms;
--      10 number of queues; then the queue names; then the first runs that have completed (fast_path/finish.lua); then
--      5 fields an outcome of all others (outcome.lua): id, lease, kind, body, detail
-- Reply: { {number and code (outcome.lua) of each outcome that was not simply accepted}, reply of claim_queues.lua }
-- @include "context"
-- @include "events"
-- @include "wake"
-- @include "fast_path/finish"
-- @include "claim_queues"
local request = {
  child = ARGV[4], call = ARGV[5], mark = ARGV[5] .. ':', resent = ARGV[6] == '1',
  jobs = math.min(100, tonumber(ARGV[7])), min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
  queues = { unpack(ARGV, 11, 10 + tonumber(ARGV[10])) },
}
local completed = 11 + tonumber(ARGV[10])
expect(processing_key(request.child), 'list')
expect(workers_key, 'zset')
request.is_quiet = expect_workflow_keys(resent_key(request.child))
local other_outcomes = read_completed(request.child, completed)
for at = other_outcomes, #ARGV, 5 do slow_path().read_claim(ARGV[at]) end

write_even_when_full()
complete_on_fast_path(request.child, completed)
for at = other_outcomes, #ARGV, 5 do
  local number = ARGV[completed] + (at - other_outcomes) / 5 + 1
  note_code(number, slow_path().record_outcome(request.child, unpack(ARGV, at, at + 4)))
end
if slow_path_built then slow_path_built.drop_settled(request.child) end
if request.jobs == 0 and not request.resent then
  flush()
  return { codes, { tonumber(request.call), {}, {}, 0, {}, {} } }
end
flush_pending_writes()  -- a job that was handed back may be claimed again; workflows are written at the end
request.holding = redis.call('LLEN', processing_key(request.child)) - unwritten  -- which have ended
local claim = claim_queues(request)
flush()
return { codes, claim }
