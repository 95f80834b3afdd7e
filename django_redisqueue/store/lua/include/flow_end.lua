-- flow_end: the end of a workflow, and the one place where its counts are written.
-- @include "callback"
local function end_flow(flow, status)
  set_flow(flow, 'status', status)
  redis.call('HSET', flow_key(flow.id), 'ended_ms', now_text)
  if flow.ttl_ms > 0 then redis.call('ZADD', workflows_key, whole(now + flow.ttl_ms), flow.id) end
  emit_flow(flow, status)
  redis.call('PUBLISH', base .. 'done:' .. flow.id, status)
  local which = status == 'completed' and 'complete' or status == 'failed' and 'failure'
  if which then call_back(flow_key(flow.id), which, flow.id .. '.' .. which .. text(flow.generation)) end
end

-- Its clean-up begins, in steps; no retry takes it up any more (revive.lua).
local function clean_up(flow)
  redis.call('ZREM', workflows_key, flow.id)
  redis.call('HSET', flow_key(flow.id), 'cleaning', 1)
  flow.cleaning = '1'
  leave_for_later('clean:' .. flow.id .. ':0')
end

-- No retry brings back a job whose workflow is cancelled, or goes: who waits for one would wait for ever.
local function is_past_retry(id)
  local flow_id = flow_of(id)
  if not flow_id then return false end
  local flow = load_flow(flow_id)
  return not flow or flow.status == 'cancelled' or flow.cleaning
end

-- Stuck: what waits, waits for jobs that have failed; not when some of it was held back, and is about to go.
local function is_stuck(flow, ended)
  return flow.fatal > 0 and not flow.paused and ended + flow.waiting >= flow.total
    and redis.call('EXISTS', flow_held_key(flow.id)) == 0
end

local function flush_flows()
  for _, flow in pairs(flows) do
    if flow and next(flow.dirty) then
      local ended = flow.completed + flow.failed + flow.cancelled
      if flow.status == 'running' and (ended >= flow.total or is_stuck(flow, ended)) then
        end_flow(flow, flow.fatal > 0 and 'failed' or 'completed')
      end
      local fields = {}
      for field in pairs(flow.dirty) do
        local value = flow[field]
        fields[#fields + 1], fields[#fields + 2] = field, field == 'status' and value or text(value)
      end
      redis.call('HSET', flow_key(flow.id), unpack(fields))
      flow.dirty = {}
    end
  end
end
