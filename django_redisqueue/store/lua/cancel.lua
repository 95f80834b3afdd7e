-- cancel: cancels a job that has not started; asks a running one to stop.
-- KEYS[1] meta
-- ARGV 1-3 context; then job ids (1-100)
-- Reply, one code a job: 1 cancelled, 2 asked to stop (runs now), 0 finished already, -1 not known
-- A queued id of priority 0 stays in its list until a claim discards it, for LREM costs the list's length;
-- its hash says so (`lingers`).
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
local ids = { unpack(ARGV, 4) }
expect(events_key, 'stream')
expect_queues_of(ids)
write_even_when_full()

local function cancel(id)
  local key = job_key(id)
  local f = read(id, 'status', 'queue', 'task', 'child', 'lease', 'attempts', 'seq', 'audit', 'priority',
    'watched', 'then')
  local status, queue = f[1], f[2] or 'default'
  if not status then return -1 end
  if status == 'processing' then
    redis.call('HSET', key, 'cancel_ms', now)
    redis.call('PUBLISH', control_channel, 'cancel ' .. (f[4] or '') .. ' ' .. id .. ' ' .. (f[5] or 0))
    return 2
  end
  if status == 'scheduled' or status == 'retrying' then
    redis.call('ZREM', queue_key(queue, status), id)
  elseif status == 'queued' then
    if f[9] then
      redis.call('ZREM', queue_key(queue, 'priority'), id)
    else
      redis.call('HSET', key, 'lingers', 1)
    end
  elseif status ~= 'waiting' then
    return 0
  end
  conclude({ id = id, queue = queue, task = f[3] or '', child = '', attempt = f[6] or 0,
    seq = tonumber(f[7]) or 1, audit = f[8], watched = f[10], from = status,
    dependants = f[11] }, 'cancelled', '', '', '')
  return 1
end

local codes = {}
for _, id in ipairs(ids) do codes[#codes + 1] = cancel(id) end
flush()
return codes
