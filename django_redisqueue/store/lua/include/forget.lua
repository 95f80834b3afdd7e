-- forget: deletes a finished job's hash and counts its bytes down. The caller takes the id off its list.
-- keep_ms: how much longer a repeated enqueue of the job may arrive.
-- @include "orphans"
-- @include "tombstone"
-- With a gather's follow-up that failed go the results that were kept for its retry.
local function let_go_of_results(id)
  local status, key = unpack(read(id, 'status', 'gather'))
  local is_kept = key and (status == 'failed' or status == 'cancelled') and load_plan(key, gather_of(id))
  if is_kept then look_again(key, now) end
end

local function tell_of_leaving(id, dependants, watched)
  if string.find(id, '^gather_.*%.[tf]%a+$') then let_go_of_results(id) end  -- .then, .failure
  if dependants and flow_of_job(id) or has_followers(id, watched) then leave_orphans(id, dependants) end
end

local function forget(queue, status, id, keep_ms)
  local key, f = job_key(id), read(id, 'status', 'bytes', 'lingers', 'then', 'watched', 'deleted')
  if (f[1] or f[6] and 'deleted') ~= status then return end
  tell_of_leaving(id, f[4], f[5])
  redis.call('UNLINK', key)
  local found = gather(queue)
  found.bytes = found.bytes - (integer(f[2]) or 0)
  bury(id, f[3], keep_ms)
end
