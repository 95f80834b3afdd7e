-- finish: settles a batch of outcomes and claims the next batch, in one round trip.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child, 5 call number, 6 resent (0/1), 7 jobs wanted (0-100), 8 lowest priority,
--      9 lease ms, 10 number of queues, then the queue names; then the first runs that have completed (see
--      completed_first.lua); then 5 fields an outcome of others (see settle.lua):
--      id, lease, verdict, body, detail
-- Reply: { {number, settle code of each outcome that was not simply accepted}, the reply of claim_queues.lua }
-- @include "context"
-- @include "announce"
-- @include "wake"
-- @include "complete"
-- @include "claim_queues"
local want = {
  child = ARGV[4], call = ARGV[5], mark = ARGV[5] .. ':', resent = ARGV[6] == '1',
  jobs = math.min(100, tonumber(ARGV[7])), min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
  queues = { unpack(ARGV, 11, 10 + tonumber(ARGV[10])) },
}
local completed = 11 + tonumber(ARGV[10])
expect(held_key(want.child), 'list')
expect(workers_key, 'zset')
expect_flows()
local outcomes = look_at_completed(want.child, completed)
for at = outcomes, #ARGV, 5 do full().look(ARGV[at]) end

write_even_when_full()
complete(want.child, completed)
for at = outcomes, #ARGV, 5 do
  note_code(ARGV[completed] + (at - outcomes) / 5 + 1, full().settle(want.child, unpack(ARGV, at, at + 4)))
end
if made then made.drop_held(want.child) end
if want.jobs == 0 then
  flush()
  return { codes, { tonumber(want.call), {}, {}, 0, {}, {} } }
end
flush_lists()  -- a job that was handed back may be claimed again; workflows are written once, at the end
want.holding = redis.call('LLEN', held_key(want.child)) - unwritten  -- which have ended
local claim = claim_queues(want)
flush()
return { codes, claim }
