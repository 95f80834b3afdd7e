-- run_now: moves scheduled and retrying jobs to the tail of their queue before they are due.
-- KEYS[1] meta
-- ARGV 1-3 context; then job ids (1-100)
-- Reply, one code per job: 1 queued, 0 neither scheduled nor retrying, -1 unknown, -2 it is parked: its event or the
--      end of its sleep has not come, so it would park again
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "promote"
local ids = { unpack(ARGV, 4) }
expect_queues_of(ids)
write_even_when_full()

local function run_now(id)
  local status, queue, waits_for = unpack(read(id, 'status', 'queue', 'waits_for'))
  if not status then return -1 end
  if status ~= 'scheduled' and status ~= 'retrying' then return 0 end
  if status == 'scheduled' and waits_for then return -2 end
  promote_job(queue or 'default', status, id)
  wake(queue or 'default')
  return 1
end

local codes = {}
for _, id in ipairs(ids) do codes[#codes + 1] = run_now(id) end
flush_events()
return codes
