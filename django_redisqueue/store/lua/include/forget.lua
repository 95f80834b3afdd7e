-- forget: deletes a finished job's hash and counts its bytes down. The caller takes the id off its list.
local function forget(queue, id)
  local key = job_key(id)
  local size = HASH_BYTES + redis.call('HSTRLEN', key, 'payload')
    + redis.call('HSTRLEN', key, 'result') + redis.call('HSTRLEN', key, 'error')
  if redis.call('UNLINK', key) == 1 then
    local found = gather(queue)
    found.bytes = found.bytes - size
  end
end
