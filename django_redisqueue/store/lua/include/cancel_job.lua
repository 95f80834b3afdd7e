-- cancel_job: cancels one job; a running one is asked to stop. Returns the code of cancel.lua.
-- A queued id of priority 0 stays in its list until a claim discards it, for LREM costs the list's length;
-- its hash says so (`lingers`), and the queue counts them (tidy.lua).
-- @include "conclude"
-- @include "unsaid"
local function cancel_job(id, reason)
  local key = job_key(id)
  local f = read(id, 'status', 'queue', 'task', 'child', 'lease', 'attempts', 'seq', 'audit', 'priority',
    'watched', 'then')
  local status, queue = f[1], f[2] or 'default'
  if not status then return -1 end
  if status == 'processing' then
    redis.call('HSET', key, 'cancel_ms', now_text)
    if not has(f[10], 'c') then redis.call('HSET', key, 'watched', (f[10] or '') .. 'c') end
    redis.call('PUBLISH', control_channel, 'cancel ' .. (f[4] or '') .. ' ' .. id .. ' ' .. lease_of(status, f[5]))
    return 2
  end
  if status == 'scheduled' or status == 'retrying' then
    redis.call('ZREM', queue_key(queue, status), id)
  elseif status == 'queued' then
    local was_ranked = redis.call('ZREM', queue_key(queue, 'priority'), id) == 1  -- or aside (claim_aside.lua)
    if not f[9] and not was_ranked then
      redis.call('HSET', key, 'lingers', 1)
      tally(queue_key(queue, 'meta'), 'lingering', 1)
    end
  elseif status == 'waiting' then
    leave_waiting(queue, id)
  else
    if status ~= 'completed' and has(f[10], 'f') and is_past_retry(id) then leave_for_later('gone:' .. id) end
    return 0
  end
  conclude({ id = id, queue = queue, task = f[3] or '', child = '', attempt = integer(f[6]) or 0,
    seq = seq_of(status, f[7]), audit = f[8], watched = f[10], from = status,
    dependants = f[11] }, 'cancelled', '', '', reason)
  return 1
end
