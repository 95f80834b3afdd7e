-- tombstone: what remains of a deleted job while something may still ask for its id: a hash with nothing but `lingers`,
-- and until_ms if it is needed for longer than its id is in its queue's list.
--   a repeated enqueue may arrive for a while (keep_ms), and must not create the job again
--   the claim that finds the id of a cancelled job in its queue's list must not report it as lost
local function leave_tombstone(id, lingers, keep_ms)
  if keep_ms <= 0 and not lingers then return end
  local key = job_key(id)
  redis.call('HSET', key, 'lingers', 1)
  if keep_ms > 0 and lingers then redis.call('HSET', key, 'until_ms', whole(now + keep_ms)) end
  if not lingers then redis.call('PEXPIRE', key, whole(keep_ms)) end
end

-- Handles an id that leaves its queue's list without being queued. Returns false if there is no record of it.
local function stop_lingering(queue, id, status)
  local key = job_key(id)
  local lingers, until_ms, deleted = unpack(read(id, 'lingers', 'until_ms', 'deleted'))
  local keep_ms = (integer(until_ms) or 0) - now
  if lingers then increment(queue_key(queue, 'meta'), 'lingering', -1) end
  if status or deleted then
    redis.call('HDEL', key, 'lingers')
  elseif keep_ms > 0 then
    redis.call('PEXPIRE', key, whole(keep_ms))
  elseif lingers then
    redis.call('DEL', key)
  end
  return status or lingers
end
