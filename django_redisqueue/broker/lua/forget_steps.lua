-- forget_steps: lets failed or cancelled jobs forget their steps, so that a requeue starts them over.
-- KEYS[1] meta
-- ARGV 1-3 context; then job ids (1-100)
-- Reply, one code per job: 1 forgotten, 0 not failed or cancelled, -1 unknown
-- @include "context"
-- @include "steps"
local ids = { unpack(ARGV, 4) }
write_even_when_full()
local codes = {}
for _, id in ipairs(ids) do
  local status, queue, watched, bytes = unpack(read(id, 'status', 'queue', 'watched', 'bytes'))
  if not status then
    codes[#codes + 1] = -1
  elseif status ~= 'failed' and status ~= 'cancelled' then
    codes[#codes + 1] = 0
  else
    local freed = has_steps(watched) and steps_bytes(id) or 0
    start_over(id, watched)
    if freed > 0 then
      redis.call('HSET', job_key(id), 'bytes', text((integer(bytes) or 0) - freed))
      increment(queue_key(queue or 'default', 'meta'), 'finished_bytes', -freed)
    end
    codes[#codes + 1] = 1
  end
end
return codes
