-- delete: lets finished jobs go at once, by their names. The mirror's record of a job stays.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 resend window ms; 5.. job ids (1-100)
-- Reply, one code a job: 1 deleted, 0 not finished (or those that wait for it are being told so), -1 not known
-- Those that wait for a failed or cancelled one end: cancelled with reason parent_gone, unless they go on.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "forget"
local resend_ms = tonumber(ARGV[4])
local ids = { unpack(ARGV, 5) }
expect_queues_of(ids)
write_even_when_full()

local codes = {}
for _, id in ipairs(ids) do
  local f = read(id, 'status', 'queue', 'finished_ms')
  local status, queue = f[1], f[2] or 'default'
  if not status then
    codes[#codes + 1] = -1
  elseif not FINAL[status] or status == 'completed' and is_waited_for(id) then
    codes[#codes + 1] = 0
  else
    redis.call('ZREM', queue_key(queue, status), id)
    forget(queue, status, id, (integer(f[3]) or 0) + resend_ms - now)
    codes[#codes + 1] = 1
  end
end
flush()
return codes
