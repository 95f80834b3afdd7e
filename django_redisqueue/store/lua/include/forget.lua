-- forget: deletes a finished job's hash and counts its bytes down. The caller takes the id off its list.
-- keep_ms: how much longer a repeated enqueue of the job may arrive.
-- What may still ask for the id meets a tombstone, a hash with nothing but `lingers`: the repeated enqueue,
-- and the claim that finds the id of a cancelled job in its queue's list and must not call it lost.
-- @include "orphans"
local function forget(queue, status, id, keep_ms)
  local key, f = job_key(id), read(id, 'status', 'bytes', 'lingers', 'then', 'watched')
  if f[1] ~= status then return end
  if (f[4] or has(f[5], 'f')) and is_waited_for(id) then leave_orphans(id, f[4]) end
  redis.call('UNLINK', key)
  local found = gather(queue)
  found.bytes = found.bytes - (tonumber(f[2]) or 0)
  if not f[3] and keep_ms <= 0 then return end
  redis.call('HSET', key, 'lingers', 1)
  if not f[3] then redis.call('PEXPIRE', key, whole(keep_ms)) end
end
