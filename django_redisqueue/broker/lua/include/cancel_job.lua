-- cancel_job: cancels one job, or asks a running one to stop. Returns the code of cancel.lua.
-- A queued id of priority 0 stays in its list until a claim drops it, because the cost of LREM grows with the list. Its
-- hash records that (`lingers`), and the queue counts such ids (compact.lua).
-- @include "fast_path/implied_fields"
-- @include "end_job"
-- @include "lanes"
local function cancel_job(id, reason)
  local key = job_key(id)
  local status, queue, child, lease, priority, watched = unpack(
    read(id, 'status', 'queue', 'child', 'lease', 'priority', 'watched'))
  if not status then return -1 end
  queue = queue or 'default'
  if status == 'processing' then
    redis.call('HSET', key, 'cancel_ms', now_text)
    if not has(watched, 'c') then redis.call('HSET', key, 'watched', (watched or '') .. 'c') end
    publish(control_channel, 'cancel ' .. (child or '') .. ' ' .. id .. ' ' .. lease_of(status, lease))
    return 2
  end
  if status == 'scheduled' or status == 'retrying' then
    redis.call('ZREM', queue_key(queue, status), id)
  elseif status == 'queued' and has(watched, 'l') then
    lanes().leave_lane(queue, id, read(id, 'lane')[1])
  elseif status == 'queued' then
    local was_ranked = redis.call('ZREM', queue_key(queue, 'priority'), id) == 1  -- or set aside (slow_claim.lua)
    if not priority and not was_ranked then
      redis.call('HSET', key, 'lingers', 1)
      increment(queue_key(queue, 'meta'), 'lingering', 1)
    end
  elseif status == 'waiting' then
    leave_waiting(queue, id)
  else
    if status ~= 'completed' and has(watched, 'f') and is_past_retry(id) then defer('gone:' .. id) end
    return 0
  end
  cancel_idle(id, status, reason)
  return 1
end
