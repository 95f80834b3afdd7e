-- promote_due: moves up to `limit` ids whose time has come to the tail of their queue; returns how
-- many. An id whose hash is gone moves too: the claim that meets it reports it as lost.
local function promote_due(queue, limit)
  local moved = 0
  for _, list in ipairs({ 'scheduled', 'retrying' }) do
    local due = redis.call('ZRANGEBYSCORE', queue_key(queue, list), '-inf', now, 'LIMIT', 0, limit - moved)
    for _, id in ipairs(due) do
      redis.call('ZREM', queue_key(queue, list), id)
      local job = read(id, 'status', 'task', 'priority', 'attempts', 'seq', 'audit')
      if job[1] == list then
        local seq = (integer(job[5]) or 1) + 1
        place(queue, id, tonumber(job[3]) or 0)
        redis.call('HSET', job_key(id), 'status', 'queued', 'seq', seq, 'ready_ms', now_text)
        redis.call('HDEL', job_key(id), 'due_ms')
        emit(id, 'queued', queue, job[2] or '', '', integer(job[4]) or 0, seq, job[6])
        moved = moved + 1
      elseif not job[1] then
        place(queue, id, 0)
        moved = moved + 1
      end
    end
    if moved >= limit then break end
  end
  return moved
end
