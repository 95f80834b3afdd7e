-- revive: the retry of a job takes its workflow up again, as a new generation; or returns why it cannot.
local function revive(id, status)
  local flow_id = flow_of(id)
  if not flow_id then return nil end
  local flow = load_flow(flow_id)
  if not flow or flow.cleaning then return -2 end
  if flow.status == 'cancelled' then return -3 end
  local f = read(id, 'on_fail', 'reason')
  local was_told = f[2] == 'skipped' or f[2] == 'parent_gone'
  local was_fatal = (f[1] or 'fail') == 'fail' and not was_told
  if was_fatal then set_flow(flow, 'fatal', math.max(0, flow.fatal - 1)) end
  if flow.status == 'running' or flow.status == 'building' then return nil end
  set_flow(flow, 'status', 'running')
  set_flow(flow, 'generation', flow.generation + 1)
  redis.call('HDEL', flow_key(flow_id), 'ended_ms')
  redis.call('ZREM', workflows_key, flow_id)
  emit_flow(flow, 'running')
  leave_for_later('held:' .. flow_id)
end
