-- advance_some: spends what is left of this script's budget on the entries of the list `flows`:
--   job:<id>, follow:<id>   a job has ended, and its dependants, or its followers, are to be told
--   gone:<id>         a job was deleted that others wait for
--   free:<id>, end:<id>   a job may go, or is cancelled, but a key of its queue was of a wrong type
--   held:<workflow>   jobs held back may go again
--   start:<workflow>:<n>, cancel:…, clean:…   the same for all jobs of a workflow, from number n on
-- An entry that is not done goes to the end of the list, so that a large one does not hold up the others.
-- @include "flow_steps"
-- @include "orphans"
local function give_back(flow_id)
  local flow = load_flow(flow_id)
  if not flow or is_held(flow) or not is_list(flow_held_key(flow_id)) then return nil end
  local ids = redis.call('LRANGE', flow_held_key(flow_id), 0, budget - 1)
  for _, id in ipairs(ids) do ACTS.start(id) end
  redis.call('LTRIM', flow_held_key(flow_id), #ids, -1)
  budget, moved = budget - #ids, moved + #ids
  if redis.call('EXISTS', flow_held_key(flow_id)) == 1 then return 'held:' .. flow_id end
  set_flow(flow, 'status', flow.status)  -- so that its end is looked for
end

local function tell_rest(id)
  local f = read(id, 'then', 'status', 'on_fail', 'reason')
  if not f[1] or not FINAL[f[2]] then return nil end  -- sent back: its next end tells the others
  local is_skipped = f[3] == 'skip' or f[4] == 'skipped' or f[4] == 'parent_gone'
  if not tell_dependants(id, f[1], f[2] ~= 'completed' and is_skipped and 'skipped') then return 'job:' .. id end
end

-- Not all who wait for it may be there yet.
local function is_being_pushed(id)
  local flow = flow_of_job(id)
  return flow and flow.status == 'building'
end

local function advance_one(entry)
  local kind, rest = string.match(entry, '^(%a+):(.*)$')
  if (kind == 'job' or kind == 'gone') and is_being_pushed(rest) then return entry end
  if kind == 'job' then return tell_rest(rest) end
  if kind == 'follow' then return not follow_on(rest) and entry or nil end
  if kind == 'gone' then return not tell_orphans(rest) and entry or nil end
  if kind == 'held' then return give_back(rest) end
  if kind == 'free' then return ACTS.start(rest) end
  if kind == 'end' then return cancel_soundly(rest, '') end
  local flow_id, from = string.match(rest, '^(.*):(%d+)$')
  return walk(kind, flow_id, tonumber(from))
end

local function advance_some()
  for _ = 1, redis.call('LLEN', flows_key) do
    if budget <= 0 then return end
    local entry = redis.call('LPOP', flows_key)
    if not entry then return end
    budget = budget - 1
    local rest = advance_one(entry)
    if rest then redis.call('RPUSH', flows_key, rest) end
  end
end
