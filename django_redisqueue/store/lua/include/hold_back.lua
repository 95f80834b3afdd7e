-- hold_back: what a claim does with a job whose workflow is paused or over.
-- It does not start: it waits in its workflow for the release. f: see claim_other.lua.
local function hold_back(flow, queue, id, f)
  local seq, attempts = (integer(f[5]) or 1) + 1, integer(f[8]) or 0
  if flow.status == 'cancelled' then
    local more = read(id, 'then', 'watched')
    return conclude({ id = id, queue = queue, task = f[2] or '', child = '', attempt = attempts,
      seq = seq - 1, audit = f[7], from = 'queued', dependants = more[1], watched = more[2] }, 'cancelled', '', '', '')
  end
  redis.call('HSET', job_key(id), 'status', 'waiting', 'seq', seq)
  redis.call('HDEL', job_key(id), 'when')  -- a delay that has passed
  redis.call('RPUSH', flow_held_key(flow.id), id)
  flow_move(id, 'queued', 'waiting')
  emit(id, 'waiting', queue, f[2] or '', '', attempts, seq, f[7])
end
