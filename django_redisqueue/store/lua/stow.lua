-- stow: notes the name of the file that is about to hold the result of a gather's job, so that it is deleted
-- with the gather, whatever becomes of the job.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 job id; 5 lease; 6 name of the file
-- Reply: 1 noted, 0 the lease is lost, -1 the gather is over or not known
-- @include "context"
-- @include "unsaid"
-- @include "gather_plan"
local id, lease, name = ARGV[4], ARGV[5], ARGV[6]
local f = read(id, 'status', 'lease', 'gather')
if f[1] ~= 'processing' or lease_of(f[1], f[2]) ~= lease then return 0 end
local plan = f[3] and load_plan(f[3], gather_of(id))
if not plan then return -1 end
write_even_when_full()
redis.call('HSET', plan_key(plan.key), 'files', 1, 'file:' .. name, 1)
return 1
