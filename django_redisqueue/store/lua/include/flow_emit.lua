-- flow_emit: a workflow's own transition onto the stream and its channel, with its counts by now. Its name is
-- the user's text, and stands beside the JSON.
-- @include "flows"
local function emit_flow(flow, status)
  local f = redis.call('HMGET', flow_key(flow.id), 'name', 'made_ms')
  local event = '{"workflowId":"' .. flow.id .. '","status":"' .. status .. '","generation":'
    .. text(flow.generation) .. ',"total":' .. text(flow.total) .. ',"completed":' .. text(flow.completed)
    .. ',"failed":' .. text(flow.failed) .. ',"cancelled":' .. text(flow.cancelled)
    .. (flow.paused and ',"paused":true' or '') .. ',"madeMs":' .. (f[2] or now_text)
    .. ',"timestamp":' .. now_text .. '}'
  collect(':workflow', event)
  collect(':name', f[1] or '')
  told = told + 1
  if told == MOST then flush_events() end
  redis.call('PUBLISH', channel .. ':workflows', event)
end
