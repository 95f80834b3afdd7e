-- flow_steps: what is done to all jobs of a workflow, as many of them a call as the budget allows.
local function cancel_job(id)
  local f = read(id, 'status', 'queue', 'task', 'child', 'lease', 'attempts', 'seq', 'audit', 'watched', 'then')
  local status, queue = f[1], f[2] or 'default'
  if status and not is_sound(queue) then return leave_for_later('end:' .. id) end
  moved = moved + 1
  if status == 'processing' then
    redis.call('HSET', job_key(id), 'cancel_ms', now)
    redis.call('PUBLISH', control_channel, 'cancel ' .. (f[4] or '') .. ' ' .. id .. ' ' .. (f[5] or 0))
  elseif status == 'waiting' or status == 'scheduled' or status == 'retrying' then
    if status ~= 'waiting' then redis.call('ZREM', queue_key(queue, status), id) end
    conclude({ id = id, queue = queue, task = f[3] or '', child = '', attempt = f[6] or 0,
      seq = tonumber(f[7]) or 1, audit = f[8], watched = f[9], from = status,
      dependants = f[10] }, 'cancelled', '', '', '')
  end  -- a queued one is cancelled by the claim that meets it
end

local ACTS = {}
function ACTS.start(id)
  local f = read_waiting(id)
  if f.status == 'waiting' and f.waits == 0 then free(id, f) end
end
ACTS.cancel = cancel_job
function ACTS.clean(id)
  local f = read_waiting(id)
  if f.status == 'waiting' then cancel_waiting(id, f, 'cleaned', false) end
  redis.call('UNLINK', then_key(id))
end

-- A range of a workflow's jobs; returns the entry that goes on, or nil at the end.
local function walk(act, flow_id, from)
  local flow = load_flow(flow_id)
  if not flow then return nil end
  local to = math.min(flow.total, from + budget)
  for n = from, to - 1 do ACTS[act](flow_id .. '.' .. whole(n)) end
  budget = budget - (to - from)
  if to < flow.total then return act .. ':' .. flow_id .. ':' .. whole(to) end
  if act == 'clean' then
    flows[flow_id] = false
    redis.call('UNLINK', flow_key(flow_id), flow_held_key(flow_id))
  end
end
