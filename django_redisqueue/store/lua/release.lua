-- release: hands jobs that a child holds, and has not started, back to the head of their queue in the
-- order they had. Spends nothing. A job with a pending cancel becomes cancelled.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; then 2 fields a job (1-100), oldest first: id, lease
-- Reply: a settle code a job, in the same order (see settle.lua)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "settle"
local child = ARGV[4]
expect(held_key(child), 'list')
for at = 5, #ARGV, 2 do look(ARGV[at]) end

write_even_when_full()
local codes = {}
for at = #ARGV - 1, 5, -2 do  -- newest first, so that the oldest ends up at the very head
  table.insert(codes, 1, settle(child, ARGV[at], ARGV[at + 1], 'queued', '', ''))
end
drop_held(child)
flush()
return codes
