-- record_result_file: records the name of a file before the result of a gather's job is written to it, so that the file
-- is deleted with the gather, whatever becomes of the job.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 job id; 5 lease; 6 name of the file
-- Reply: 1 recorded, 0 lease lost, -1 the gather is over or unknown
-- @include "context"
-- @include "fast_path/implied_fields"
-- @include "gather_plan"
local id, lease, name = ARGV[4], ARGV[5], ARGV[6]
local status, held_lease, key = unpack(read(id, 'status', 'lease', 'gather'))
if status ~= 'processing' or lease_of(status, held_lease) ~= lease then return 0 end
local plan = key and load_plan(key, gather_of(id))
if not plan then return -1 end
write_even_when_full()
redis.call('HSET', plan_key(plan.key), 'files', 1, 'file:' .. name, 1)
return 1
