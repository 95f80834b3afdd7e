-- record_result_file: records the name of a file before a job's result is written to it, so that the file is eventually
-- deleted, whatever becomes of the job: with its gather, or once the job's hash is gone.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 job id; 5 lease; 6 name of the file
-- Reply: 1 recorded, 0 lease lost, -1 the gather is over or unknown, -2 no other job reads this job's result
-- @include "context"
-- @include "fast_path/implied_fields"
-- @include "gather_plan"
local id, lease, name = ARGV[4], ARGV[5], ARGV[6]
local status, held_lease, key, watched = unpack(read(id, 'status', 'lease', 'gather', 'watched'))
if status ~= 'processing' or lease_of(status, held_lease) ~= lease then return 0 end
local gather_id = gather_of(id)
if gather_id then
  local plan = key and load_plan(key, gather_id)
  if not plan then return -1 end
  write_even_when_full()
  redis.call('HSET', plan_key(plan.key), 'files', 1, 'file:' .. name, 1)
  return 1
end
local has_followers = watched and string.find(watched, 'f', 1, true)
if not (is_of_workflow(id) or has_followers) then return -2 end
expect(result_files_key, 'hash')
write_even_when_full()
redis.call('HSET', result_files_key, name, id)
return 1
