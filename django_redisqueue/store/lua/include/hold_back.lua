-- hold_back: what a claim does with a job whose workflow does not let it start.
-- A workflow that is gone was cleaned up: its jobs, and those that came back since, have nobody to go on for.
local function may_not_start(id, flow)
  if flow then return is_held(flow) end
  local flow_id = flow_of(id)
  return flow_id and redis.call('EXISTS', flow_key(flow_id)) == 0
end

-- Of a workflow that is paused, or has failed, it waits there for the release, or a retry. Of one that is cancelled, or
-- whose clean-up has begun, it ends: it came back behind the steps that end all jobs, so nothing else would.
-- f: see claim_other.lua
local function hold_back(flow, queue, id, f)
  local seq, attempts = (integer(f[5]) or 1) + 1, integer(f[8]) or 0
  if not flow or flow.cleaning or flow.status == 'cancelled' then
    local more, reason = read(id, 'then', 'watched'), flow and flow.status == 'cancelled' and '' or 'cleaned'
    return conclude({ id = id, queue = queue, task = f[2] or '', child = '', attempt = attempts, seq = seq - 1,
      audit = f[7], from = 'queued', dependants = more[1], watched = more[2] }, 'cancelled', '', '', reason)
  end
  redis.call('HSET', job_key(id), 'status', 'waiting', 'seq', seq)
  redis.call('HDEL', job_key(id), 'when')  -- a delay that has passed
  redis.call('RPUSH', flow_held_key(flow.id), id)
  flow_move(id, 'queued', 'waiting')
  emit(id, 'waiting', queue, f[2] or '', '', attempts, seq, f[7])
end
