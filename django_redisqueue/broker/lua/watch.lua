-- watch: asks for a message on the channel <base>done:<id> when this job ends (end_job.lua).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 id
-- Reply: the job's current status, '' if it is unknown
-- @include "context"
-- @include "fast_path/implied_fields"
-- `watched` has a letter for each reason why the job's end matters to others: 1 a watcher, c a requested cancel; for
-- the other letters see followers.lua, index.lua and new_job.lua.
local id = ARGV[4]
local status, watched = unpack(read(id, 'status', 'watched'))
if not status then return '' end
write_even_when_full()
if not string.find(watched or '', '1', 1, true) then
  redis.call('HSET', job_key(id), 'watched', (watched or '') .. '1')
  leave_fast_path(id)
end
return status
