-- cancel: cancels jobs that have not started; asks running ones to stop.
-- KEYS[1] meta
-- ARGV 1-3 context; then job ids (1-100)
-- Reply, one code per job: 1 cancelled, 2 asked to stop (it is running), 0 already finished, -1 unknown
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "cancel_job"
local ids = { unpack(ARGV, 4) }
expect_queues_of(ids)
write_even_when_full()

local codes = {}
for _, id in ipairs(ids) do codes[#codes + 1] = cancel_job(id, '') end
flush()
return codes
