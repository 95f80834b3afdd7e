-- promote: promote_due() moves up to `limit` due ids to the tail of their queue and returns how many. An id whose hash
-- is gone also moves: the claim that finds it reports it as lost.
-- @include "lanes"
-- @include "wait_list"
-- Moves an id of `list`, which is `scheduled` or `retrying`, to the tail of its queue. Returns whether it was there.
local function promote_job(queue, list, id)
  redis.call('ZREM', queue_key(queue, list), id)
  local status, task, priority, attempts, old_seq, audit, lane, waits_for = unpack(
    read(id, 'status', 'task', 'priority', 'attempts', 'seq', 'audit', 'lane', 'waits_for'))
  if waits_for then leave_wait_list(id, waits_for) end
  if not status then
    place(queue, id, 0)
    return true
  end
  if status ~= list then return false end
  local seq = (integer(old_seq) or 1) + 1
  line_up(queue, id, tonumber(priority) or 0, false, lane)
  redis.call('HSET', job_key(id), 'status', 'queued', 'seq', seq, 'ready_ms', now_text)
  redis.call('HDEL', job_key(id), 'due_ms')
  emit(id, 'queued', queue, task or '', '', integer(attempts) or 0, seq, audit)
  return true
end

local function promote_due(queue, limit)
  local moved = 0
  for _, list in ipairs({ 'scheduled', 'retrying' }) do
    local due = redis.call('ZRANGEBYSCORE', queue_key(queue, list), '-inf', now, 'LIMIT', 0, limit - moved)
    for _, id in ipairs(due) do
      if promote_job(queue, list, id) then moved = moved + 1 end
    end
    if moved >= limit then break end
  end
  return moved
end
