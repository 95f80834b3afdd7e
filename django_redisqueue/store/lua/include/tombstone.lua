-- tombstone: what is left of a job that was let go, while something may still ask for its id: a hash with nothing but
-- `lingers`, and until_ms if that is longer than its id stands in its queue's list.
--   a repeated enqueue may come for a while (keep_ms), and must not make the job again
--   the claim that finds the id of a cancelled job in its queue's list must not call it lost
local function bury(id, lingers, keep_ms)
  if keep_ms <= 0 and not lingers then return end
  local key = job_key(id)
  redis.call('HSET', key, 'lingers', 1)
  if keep_ms > 0 and lingers then redis.call('HSET', key, 'until_ms', whole(now + keep_ms)) end
  if not lingers then redis.call('PEXPIRE', key, whole(keep_ms)) end
end

-- An id that no job is queued under leaves its queue's list; false when nothing is known of it.
local function linger_no_more(queue, id, status)
  local key, f = job_key(id), read(id, 'lingers', 'until_ms', 'deleted')
  local keep_ms = (integer(f[2]) or 0) - now
  if f[1] then tally(queue_key(queue, 'meta'), 'lingering', -1) end
  if status or f[3] then
    redis.call('HDEL', key, 'lingers')
  elseif keep_ms > 0 then
    redis.call('PEXPIRE', key, whole(keep_ms))
  elseif f[1] then
    redis.call('DEL', key)
  end
  return status or f[1]
end
