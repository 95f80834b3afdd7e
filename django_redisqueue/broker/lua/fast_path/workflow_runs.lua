-- workflow_runs: first runs of jobs of workflows on the fast path (README.md): of roots, which have no `seq`, and of
-- jobs that were released, which have 2. Made on first use, because most calls meet none.
-- @include "wake"
-- @include "fast_path/claim"
-- @include "workflow_state"
-- @first_use
-- @include "workflow"
-- @include "workflow_end"
-- @include "notices"
-- The workflow of a job that runs for the first time, unless that holds it back.
-- row: status, task, payload, options, seq, watched, audit, then, after
local function workflow_of_first_run(id, row)
  if row[1] ~= 'queued' or not row[2] or not row[3] or row[5] and row[5] ~= '2' then return nil end
  if row[6] or row[7] or row[8] == '*' then return nil end
  local workflow = workflow_of_job(id)
  return workflow and not is_held(workflow) and workflow or nil
end

-- Whether the claims of two jobs have all in common but id and payload.
local function is_alike(row, last)
  return row[2] == last[2] and row[4] == last[4] and row[5] == last[5] and row[8] == last[8]
    and #row[3] == #last[3] and #(row[9] or '') == #(last[9] or '')
end

local function describe_workflow_run(payload, options, queue, task, child, is_released, names, parents)
  local longest = math.max(#(names or ''), #(parents or ''))
  local rest = describe_run(payload, options, queue, task, child, is_released and RELEASED or 0, longest)
  if rest == '' then return '' end
  return ' @' .. (is_released and '3' or '2') .. string.gsub(names or '', ' ', '') .. rest
end

local function names_in(text)
  local names = {}
  for name in string.gmatch(text, '%.%d+') do names[#names + 1] = name end
  return names
end

-- The runs of a batch have no more dependants than one script may notify, so that their ends defer none.
local function exceeds_budget(dependants)
  batch.full = batch.size > 0 and batch.dependants + dependants > MAX_NOTIFIED
  if not batch.full then batch.dependants = batch.dependants + dependants end
  return batch.full
end

-- Claims jobs of workflows behind the first `taken` until one is not eligible. Returns how many are taken, and the row
-- of that one for the slow path, or false when it is of no workflow; nil at the end.
local function claim_first_runs(request, queue, ids, taken, claimed)
  local child, last, kind, dependants, shared, description = request.child, nil, nil, 0, nil, nil
  for position = taken + 1, #ids do
    local id = ids[position]
    if not is_of_workflow(id) then return taken, false end
    local row = read(id, 'status', 'task', 'payload', 'options', 'seq', 'watched', 'audit', 'then', 'after')
    local workflow = workflow_of_first_run(id, row)
    if not workflow then return taken, row end
    local _, task, payload, options, is_released, _, _, names, parents = unpack(row)
    local is_like_last = last and is_alike(row, last)
    if not is_like_last then dependants = #names_in(names or '') end
    if exceeds_payload_limit(payload, batch.size, batch.bytes) or exceeds_budget(dependants) then return taken, nil end
    if not is_like_last then
      last, kind = row, add_kind(queue, 1, 0, 0, task, options)
      shared = event_json('processing', queue, task, child, 1, is_released and 3 or 2, '')
      description = describe_workflow_run(payload, options, queue, task, child, is_released, names, parents)
    end
    if is_released then
      redis.call('HSET', job_key(id), 'status', 'processing', 'child', child, 'started_ms', now_text, 'seq', '3',
        'lease', '1')
    else
      redis.call('HSET', job_key(id), 'status', 'processing', 'child', child, 'started_ms', now_text)
    end
    count_transition(workflow, 'queued', 'processing')
    add_event(id, shared, '')
    claimed[#claimed + 1], claimed[#claimed + 2] = now_text, id
    taken = position
    add_to_reply(id, payload, kind)
    batch.entries[batch.size] = request.mark .. id .. description
  end
  return taken, nil
end

-- Whether nothing has happened to a run that its entry does not tell.
local function ends_as_usual(id, run)
  local workflow = workflow_of_job(id)
  run.dependants = run.dependants or names_in(run.names)
  if not workflow or workflow.status == 'building' then return false end
  if run.seq == '2' then return true end
  local watched, seq = unpack(read(id, 'watched', 'seq'))
  return not watched and (seq or '3') == '3'  -- write_completed() notices that the hash is gone
end

-- Returns what HSET replies (finish.lua).
local function write_completed(id, run, bytes, result)
  if run.seq == '2' then
    return redis.pcall('HSET', job_key(id), 'status', 'completed', 'finished_ms', now_text, 'bytes', text(bytes),
      'result', result)
  end
  return redis.pcall('HSET', job_key(id), 'status', 'completed', 'finished_ms', now_text, 'bytes', text(bytes),
    'result', result, 'seq', '4')
end

-- What the completion means for its workflow and its dependants, which are notified later (notices.lua).
local function note_completed_run(id, run, result)
  local workflow = move_in_workflow(id, 'processing', 'completed')
  if #run.dependants == 0 then return end
  if result ~= 'null' then set_workflow_field(workflow, result_field(id), '') end
  if #run.dependants > budget then return defer('job:' .. id) end
  redis.call('HDEL', job_key(id), 'then')
  budget, moved = budget - #run.dependants, moved + #run.dependants
  for _, name in ipairs(run.dependants) do note_dependant(workflow.id .. name) end
end
