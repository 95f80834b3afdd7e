-- delete: deletes finished jobs by their ids. The mirror's records stay.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 resend window ms; 5 whether a mirror reads the stream (0/1); 6.. job ids (1-100)
-- Reply, one code per job: 1 deleted, 0 not finished (or others need its result), -1 unknown
-- Jobs that wait for a failed or cancelled one are cancelled with the reason parent_gone, unless their policy is go_on.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "deletion"
local resend_ms = tonumber(ARGV[4])
local ids = { unpack(ARGV, 6) }
expect_queues_of(ids)
for _, id in ipairs(ids) do expect_queue(read(id, 'queue')[1] or 'default', 'deleted') end
write_even_when_full()

local codes, mirrored_ms = {}, mirrored_until(ARGV[5] == '1')
for _, id in ipairs(ids) do
  local status, queue = unpack(read(id, 'status', 'queue'))
  local job = status and is_final(status) and read_finished(id)
  queue = queue or 'default'
  if not status then
    codes[#codes + 1] = -1
  elseif not job or status == 'completed' and (is_waited_for(job) or is_wanted(job)) then
    codes[#codes + 1] = 0
  else
    redis.call('ZREM', queue_key(queue, status), id)
    delete_job(queue, status, job, resend_ms, mirrored_ms)
    codes[#codes + 1] = 1
  end
end
flush()
return codes
