-- flow_steps: what is done to all jobs of a workflow, as many of them a call as the budget allows.
-- @include "cancel_job"
local function cancel_soundly(id, reason)
  local f = read(id, 'status', 'queue')
  if not f[1] then return end
  if not is_sound(f[2] or 'default') then return leave_for_later('end:' .. id) end
  moved = moved + 1
  cancel_job(id, reason)
end

local ACTS = {}
function ACTS.start(id)
  local f = read(id, 'status', 'waits')
  if f[1] == 'waiting' and (tonumber(f[2]) or 0) == 0 then free(id, read_waiting(id)) end
end
function ACTS.cancel(id) cancel_soundly(id, '') end
-- What runs goes on, unless its workflow was cancelled: these steps may have overtaken those of `cancel`.
function ACTS.clean(id, flow)
  local f = read(id, 'status', 'cancel_ms')
  if f[1] ~= 'processing' or flow.status == 'cancelled' and not f[2] then cancel_soundly(id, 'cleaned') end
  redis.call('UNLINK', then_key(id))
end

-- A range of a workflow's jobs; returns the entry that goes on, or nil at the end.
local function walk(act, flow_id, from)
  local flow = load_flow(flow_id)
  if not flow then return nil end
  local to = math.min(flow.total, from + budget)
  for n = from, to - 1 do ACTS[act](flow_id .. '.' .. whole(n), flow) end
  budget, moved = budget - (to - from), moved + to - from
  if to < flow.total then return act .. ':' .. flow_id .. ':' .. whole(to) end
  if act == 'clean' then
    emit_flow(flow, 'cleaned')
    flows[flow_id] = false
    redis.call('UNLINK', flow_key(flow_id), flow_held_key(flow_id))
  end
end
