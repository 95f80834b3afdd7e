-- watch: somebody waits for this job to end: conclude will say so on the channel <base>done:<id>.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 id
-- Reply: the job's present status, '' when it is not known
-- @include "context"
local status = read(ARGV[4], 'status')[1]
if not status then return '' end
write_even_when_full()
redis.call('HSET', job_key(ARGV[4]), 'watched', 1)
return status
