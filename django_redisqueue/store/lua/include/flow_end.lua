-- flow_end: the end of a workflow, and the one place where its counts are written.
-- @include "waiting"
-- @include "index"
-- The job that a workflow's end calls for: on_complete or on_failure, once a generation, for its id says which.
local function call_back(flow, which)
  local f = redis.call('HMGET', flow_key(flow.id), which .. '_task', which .. '_payload', which .. '_queue',
    which .. '_options', which .. '_priority')
  local id = flow.id .. '.' .. which .. flow.generation
  if not f[1] or redis.call('EXISTS', job_key(id)) == 1 then return end
  local queue, options, priority = f[3] or 'default', f[4] or '', f[5] or '0'
  redis.call('HSET', job_key(id), 'task', f[1], 'payload', f[2], 'status', 'waiting', 'enqueued_ms', now_text)
  if queue ~= 'default' then redis.call('HSET', job_key(id), 'queue', queue) end
  if options ~= '' then redis.call('HSET', job_key(id), 'options', options) end
  index_new(id, options)
  if priority ~= '0' then redis.call('HSET', job_key(id), 'priority', priority) end
  free(id, { queue = queue, task = f[1], seq = 0, priority = priority })
end

local function end_flow(flow, status)
  set_flow(flow, 'status', status)
  redis.call('HSET', flow_key(flow.id), 'ended_ms', now_text)
  if flow.ttl_ms > 0 then redis.call('ZADD', workflows_key, whole(now + flow.ttl_ms), flow.id) end
  emit_flow(flow, status)
  redis.call('PUBLISH', base .. 'done:' .. flow.id, status)
  if status == 'completed' then call_back(flow, 'complete') end
  if status == 'failed' then call_back(flow, 'failure') end
end

-- Its clean-up begins, in steps; no retry takes it up any more (revive.lua).
local function clean_up(flow)
  redis.call('ZREM', workflows_key, flow.id)
  redis.call('HSET', flow_key(flow.id), 'cleaning', 1)
  leave_for_later('clean:' .. flow.id .. ':0')
end

local function flush_flows()
  for _, flow in pairs(flows) do
    if flow and next(flow.dirty) then
      local ended = flow.completed + flow.failed + flow.cancelled
      local is_stuck = flow.fatal > 0 and not flow.paused and ended + flow.waiting >= flow.total
      if flow.status == 'running' and (ended >= flow.total or is_stuck) then
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
