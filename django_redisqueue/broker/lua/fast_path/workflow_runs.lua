-- workflow_runs: claims of first runs of workflows' jobs on the fast path (README.md): of roots, which have no `seq`,
-- and of jobs that were released, which have 2. Created on first use, because most calls meet none.
-- @include "wake"
-- @include "fast_path/claim"
-- @include "workflow_state"
-- @first_use
-- @include "workflow"
-- @include "workflow_end"
local function describe_workflow_run(payload, options, queue, task, child, is_released, names, parents)
  local longest = math.max(#names, #parents)
  local rest = describe_run(payload, options, queue, task, child, is_released and RELEASED or 0, longest)
  if rest == '' then return '' end
  return ' @' .. (is_released and '3' or '2') .. string.gsub(names, ' ', '') .. rest
end

local function names_in(text)
  local names = {}
  for name in string.gmatch(text, '%.%d+') do names[#names + 1] = name end
  return names
end

-- What a claim needs of a workflow that this call has not loaded, because it only adds to `processing`.
local function outline_of(workflow_id)
  local row = redis.pcall('HMGET', workflow_key(workflow_id), 'status', 'paused_ms', 'cleaning', 'plain_queue')
  return row[1] and { status = row[1], paused = row[2], cleaning = row[3], plain_queue = row[4], started = 0 }
end

local function read_first_run(key, workflow)
  if workflow.plain_queue then return redis.pcall('HMGET', key, 'status', 'task', 'payload', 'seq', 'then') end
  return redis.pcall('HMGET', key, 'status', 'task', 'payload', 'seq', 'then', 'after', 'options', 'audit')
end

-- Claims jobs of workflows after the first `taken` until one is not eligible. Returns how many are taken, and an empty
-- row if that one is for the slow path, or false if it belongs to no workflow; nil at the end. The runs of a batch have
-- no more dependants than one script may notify, so that their ends defer none.
local function claim_first_runs(request, queue, ids, taken, claimed)
  local child, mark, jobs, entries = request.child, request.mark, batch.jobs, batch.entries
  local size, bytes, notified, at, rest = batch.size, batch.bytes, batch.dependants, #claimed, nil
  -- what most runs share with the previous one
  local last_task, last_options, last_seq, last_names, last_parents, length
  local kind, dependants, shared, description
  local workflow_id, workflow, loaded, may_run  -- of the job, and of the previous one
  local outlines = {}
  for position = taken + 1, #ids do
    local id = ids[position]
    local key, own_id = job_prefix .. id, workflow_id_of(id)
    if own_id ~= workflow_id then
      workflow_id, loaded = own_id, loaded_workflows[own_id or '']
      workflow = loaded or outlines[own_id or ''] or own_id and outline_of(own_id)
      may_run = workflow and not is_held(workflow)
      if may_run and not loaded then outlines[own_id] = workflow end
    end
    local row = may_run and read_first_run(key, workflow) or NOTHING_READ
    local status, task, payload, seq, names, parents, options, audit = unpack(row)
    if status ~= 'queued' or not task or not payload or seq and seq ~= '2' or audit or names == '*' then
      rest = is_of_workflow(id) and NOTHING_READ
      break
    end
    if task ~= last_task or options ~= last_options or seq ~= last_seq or names ~= last_names or parents ~= last_parents
      or #payload ~= length then
      last_task, last_options, last_seq, last_names, last_parents, length = task, options, seq, names, parents, #payload
      kind, dependants = nil, #names_in(names or '')
    end
    batch.full = size > 0 and (bytes + #payload > MAX_PAYLOAD_BYTES or notified + dependants > MAX_NOTIFIED)
    if batch.full then break end
    if not kind then
      kind, shared = add_kind(queue, '1', '0', '0', task, options), event_json('processing', queue, task, child,
        '1', seq and '3' or '2', '')
      description = describe_workflow_run(payload, options, queue, task, child, seq, names or '', parents or '')
    end
    if seq then
      redis.call('HSET', key, 'status', 'processing', 'child', child, 'started_ms', now_text, 'seq', '3')
    else
      redis.call('HSET', key, 'status', 'processing', 'child', child, 'started_ms', now_text)
    end
    if loaded then
      loaded.queued, loaded.processing = loaded.queued - 1, loaded.processing + 1
    else
      workflow.started = workflow.started + 1
    end
    add_event(id, shared, '')
    local n = 3 * size
    jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, payload, kind
    claimed[at + 1], claimed[at + 2] = now_text, id
    size, bytes, notified, taken, at = size + 1, bytes + #payload, notified + dependants, position, at + 2
    entries[size] = mark .. id .. description
  end
  for of_id, outline in pairs(outlines) do
    if outline.started > 0 then increment(workflow_key(of_id), 'processing', outline.started) end
  end
  batch.size, batch.bytes, batch.dependants = size, bytes, notified
  return taken, rest
end

-- @include "fast_path/workflow_ends"
