-- claim: claims queued jobs on the fast path (README.md) in one loop, and holds the batch that a call claims.
-- @include "fast_path/entry"
local batch = { jobs = {}, kinds = {}, entries = {}, lost = {}, size = 0, bytes = 0, dependants = 0, examined = 0,
  full = false, alone = false, suspects = {}, waits = false }

local claim_without_lanes, claim_ids  -- defined in claim_order.lua
local MAX_EXAMINED = 100  -- ids per call
local function has_room(request)
  return batch.size < request.jobs and batch.examined < MAX_EXAMINED and not batch.full and not batch.alone
end

-- What consecutive jobs have in common appears in the reply once (claim_queues.lua). Returns its number.
local function add_kind(queue, lease, attempts, recoveries, task, options)
  local kinds, last = batch.kinds, #batch.kinds
  local head = queue .. ' ' .. lease .. ' ' .. attempts .. ' ' .. recoveries .. ' ' .. task
  if kinds[last - 1] == head and kinds[last] == (options or '') then return last / 2 - 1 end
  kinds[last + 1], kinds[last + 2] = head, options or ''
  return last / 2
end

local function add_to_reply(id, payload, kind)
  local jobs, n = batch.jobs, 3 * batch.size
  jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, payload, kind
  batch.size, batch.bytes = batch.size + 1, batch.bytes + #payload
end

local MAX_PAYLOAD_BYTES = 1000000  -- bytes per call
local function exceeds_payload_limit(payload, size, bytes)
  batch.full = size > 0 and bytes + #payload > MAX_PAYLOAD_BYTES
  return batch.full
end

-- What jobs mostly share with those claimed before them; it is rebuilt only when it changes.
local common = {}
local function common_of(queue)
  if common.queue ~= queue then return nil end
  return common.task, common.options, common.kind, common.shared, common.length, common.description
end
local function note_common(queue, task, options, kind, shared, length, description)
  common.queue, common.task, common.options, common.kind = queue, task, options, kind
  common.shared, common.length, common.description = shared, length, description
end

local NOTHING_READ = {}
-- Claims ids after the first `taken` until one is not eligible. Returns how many are taken, and the row of that one,
-- for the slow path. pcall as in read(), which costs more.
local function claim_eligible(request, queue, ids, taken, claimed)
  local child, mark, jobs, entries = request.child, request.mark, batch.jobs, batch.entries
  local size, bytes = batch.size, batch.bytes
  local at = #claimed
  local last_task, last_options, kind, shared, length, description = common_of(queue)
  for position = taken + 1, #ids do
    local id = ids[position]
    local row = 'f' < id and id < 'h' and NOTHING_READ
      or redis.pcall('HMGET', job_prefix .. id, 'status', 'task', 'payload', 'options', 'seq')
    local status, task, payload, options, seq = row[1], row[2], row[3], row[4], row[5]
    if status ~= 'queued' or seq or not task or not payload then
      batch.size, batch.bytes = size, bytes
      return taken, row
    end
    local n = 3 * size
    if bytes + #payload > MAX_PAYLOAD_BYTES and exceeds_payload_limit(payload, size, bytes) then break end
    if task ~= last_task or options ~= last_options then
      last_task, last_options, kind, length = task, options, add_kind(queue, '1', '0', '0', task, options), nil
      shared = event_json('processing', queue, task, child, '1', '2', '')
    end
    if #payload ~= length then
      length, description = #payload, describe_run(payload, options, queue, task, child)
    end
    redis.call('HSET', job_prefix .. id, 'status', 'processing', 'child', child, 'started_ms', now_text)
    add_event(id, shared, '')
    jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, payload, kind
    claimed[at + 1], claimed[at + 2] = now_text, id
    size, bytes, taken, at = size + 1, bytes + #payload, position, at + 2
    entries[size] = mark .. id .. description
  end
  note_common(queue, last_task, last_options, kind, shared, length, description)
  batch.size, batch.bytes = size, bytes
  return taken, nil
end
