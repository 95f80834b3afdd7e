-- release: returns jobs that a child holds and has not started to the head of their queue, in their original order.
-- Spends no attempt. A job with a pending cancel is cancelled.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; then 2 fields per job (1-100), oldest first: id, lease
-- Reply: one code per job, in the same order (outcome.lua)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "outcome"
local child = ARGV[4]
expect(processing_key(child), 'list')
for at = 5, #ARGV, 2 do read_claim(ARGV[at]) end

write_even_when_full()
local codes = {}
for at = #ARGV - 1, 5, -2 do  -- newest first, so that the oldest ends up at the very head
  table.insert(codes, 1, record_outcome(child, ARGV[at], ARGV[at + 1], 'queued', '', ''))
end
drop_settled(child)
flush()
return codes
