-- flows: workflows (docs/workflows.md). The jobs of a workflow are <workflow id>.<n>; its hash counts them, so
-- that their states are known in O(1), and the script that ends the last one sees the end.
-- What would be too much for one script is left on the list `flows`, for advance_some.lua.
-- Every script that includes this ends with flush_flows().
-- @include "place"
local FLOW_COUNTS = { waiting = true, processing = true, completed = true, failed = true, cancelled = true }
local flows, budget, moved = {}, 100, 0  -- budget: dependants a script; moved: what it got done
expect_flows()

-- The workflow of a job, by its id; nil for jobs of none, whom this must cost nothing.
local names = {}
local function flow_of(id)
  if not is_of_workflow(id) then return nil end
  local found = names[id]
  if found == nil then
    found = string.match(id, '^(flow_[^.]+)%.%d+$') or false
    names[id] = found
  end
  return found or nil
end
local function flow_key(flow_id) return base .. 'workflow:' .. flow_id end
local function flow_held_key(flow_id) return flow_key(flow_id) .. ':held' end
-- Says that a job of a workflow has a result for its dependants, who read it in the job's own hash.
local function result_field(id) return 'r:' .. string.match(id, '%d+$') end
local function then_key(id) return job_key(id) .. ':then' end
local function followers_key(id) return job_key(id) .. ':followers' end

local function is_list(key)
  local found = redis.call('TYPE', key).ok
  return found == 'none' or found == 'list'
end

-- Whether its jobs may not start. Those that come back behind the steps of its clean-up may not either.
local function is_held(flow)
  return flow.paused or flow.cleaning or flow.status ~= 'running' and flow.status ~= 'completed'
end

-- The workflow as a table, or false when it is gone. One whose keys are not what they should be counts as gone.
-- `dirty` names the fields that flush_flows() is to write.
local function load_flow(flow_id)
  if flows[flow_id] ~= nil then return flows[flow_id] end
  local f = redis.pcall('HMGET', flow_key(flow_id), 'status', 'total', 'waiting', 'processing', 'completed',
    'failed', 'cancelled', 'fatal', 'paused_ms', 'generation', 'ttl_ms', 'cleaning')
  local flow = not f.err and f[1] and { id = flow_id, status = f[1], total = tonumber(f[2]) or 0,
    waiting = tonumber(f[3]) or 0, processing = tonumber(f[4]) or 0, completed = tonumber(f[5]) or 0,
    failed = tonumber(f[6]) or 0, cancelled = tonumber(f[7]) or 0, fatal = tonumber(f[8]) or 0,
    paused = f[9], generation = tonumber(f[10]) or 0, ttl_ms = tonumber(f[11]) or 0,
    cleaning = f[12], dirty = {} }
  if flow and is_held(flow) and not is_list(flow_held_key(flow_id)) then flow = false end
  flows[flow_id] = flow
  return flow
end

local function set_flow(flow, field, value)
  flow[field], flow.dirty[field] = value, true
end

local function flow_of_job(id)
  local flow_id = flow_of(id)
  return flow_id and load_flow(flow_id)
end

-- A job goes from one status to another: its workflow's counts follow. Returns the workflow, if it has one.
local function flow_move(id, from, to)
  local flow = flow_of_job(id)
  if not flow then return nil end
  if FLOW_COUNTS[from] then set_flow(flow, from, flow[from] - 1) end
  if FLOW_COUNTS[to] then set_flow(flow, to, flow[to] + 1) end
  return flow
end

local function leave_for_later(entry)
  redis.call('RPUSH', flows_key, entry)
  if redis.call('EXISTS', timer_key) == 0 then redis.call('LPUSH', timer_key, '1') end
end
