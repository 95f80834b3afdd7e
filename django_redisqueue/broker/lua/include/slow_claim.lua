-- slow_claim: claims on the slow path: jobs that have run before, that belong to workflows and gathers, have audit
-- options, or whose hash is gone; and calls that a child sends again. A part of fast_path/slow_path.lua.
-- @include "tombstone"
-- @include "place"
-- Jobs with recoveries run alone, on a child that holds nothing else. A claim that meets one on a busy child sets it
-- aside, behind the lowest priority of its queue's ZSET, where only idle children look: by priority, then in the order
-- in which claims met them.
local ASIDE, RANK = 202 * BAND, 2 ^ 36

-- Set aside only after the claim, because ids that leave their list are removed first.
local function note_suspect(queue, id)
  local priority = integer(read(id, 'priority')[1]) or 0
  batch.suspects[#batch.suspects + 1] = { queue, id, math.max(-100, math.min(100, priority)) }
end

local function set_suspects_aside()
  for _, suspect in ipairs(batch.suspects) do
    local queue, id, priority = unpack(suspect)
    local score = ASIDE + (100 - priority) * RANK + increment(queue_key(queue, 'meta'), 'tail', 1)
    redis.call('ZADD', queue_key(queue, 'priority'), whole(score), id)
  end
  batch.suspects = {}
end

-- The first job set aside, unless the queue has jobs of a higher priority. With aging these do not hold it back,
-- because it has had its turn.
local function first_set_aside(queue, min_priority, aging)
  local key = queue_key(queue, 'priority')
  local below = '(' .. whole(ASIDE + (101 - tonumber(min_priority)) * RANK)
  local id, score = unpack(redis.call('ZRANGEBYSCORE', key, whole(ASIDE), below, 'WITHSCORES', 'LIMIT', 0, 1))
  if not id or aging then return id or nil end
  local priority = 100 - math.floor((tonumber(score) - ASIDE) / RANK)
  if priority < 0 and redis.call('EXISTS', queue_key(queue, 'queued')) == 1 then return nil end
  local above = '(' .. whole((100 - priority) * BAND)
  if redis.call('ZRANGEBYSCORE', key, '-inf', above, 'LIMIT', 0, 1)[1] then return nil end
  return id
end

-- The jobs of a workflow that is gone may not start: it was cleaned up.
local function may_not_start(id, workflow)
  if workflow then return is_held(workflow) end
  local workflow_id = workflow_id_of(id)
  return workflow_id and redis.call('EXISTS', workflow_key(workflow_id)) == 0
end

-- A job of a paused or failed workflow waits for its release or a retry. One of a workflow that is cancelled or being
-- cleaned up ends here: it returned after the steps that end all jobs, so nothing else would end it.
local function hold_for_workflow(workflow, queue, id, task, seq, audit, attempts)
  if not workflow or workflow.cleaning or workflow.status == 'cancelled' then
    local reason = workflow and workflow.status == 'cancelled' and '' or 'cleaned'
    return cancel_idle(id, 'queued', reason)
  end
  redis.call('HSET', job_key(id), 'status', 'waiting', 'seq', seq + 1)
  redis.call('HDEL', job_key(id), 'when')  -- a delay that has passed
  redis.call('RPUSH', workflow_held_key(workflow.id), id)
  move_in_workflow(id, 'queued', 'waiting')
  emit(id, 'waiting', queue, task, '', attempts, seq + 1, audit)
end

-- The fields of a job; row: status, task, payload, options and seq, if the fast path has read them.
local function read_to_claim(id, row)
  if not row[1] then
    return unpack(read(id, 'status', 'task', 'payload', 'options', 'seq', 'lease', 'audit', 'attempts', 'recoveries'))
  end
  local status, task, payload, options, seq = unpack(row)
  return status, task, payload, options, seq, unpack(read(id, 'lease', 'audit', 'attempts', 'recoveries'))
end

-- Claims an id, holds it, sets it aside, or drops it from its list (a stale id, or one without a hash). Returns whether
-- it leaves its list.
local function claim_one(request, queue, id, row, claimed, in_lane)
  local status, task, payload, options, seq, lease, audit, attempts, recoveries = read_to_claim(id, row)
  if status ~= 'queued' then
    if not stop_lingering(queue, id, status) then batch.lost[#batch.lost + 1] = id end
    return true
  end
  task, payload = task or '', payload or ''  -- of a corrupt hash, which fails in the child
  seq, attempts, recoveries = integer(seq) or 1, integer(attempts) or 0, integer(recoveries) or 0
  local workflow = workflow_of_job(id)
  if workflow ~= nil and may_not_start(id, workflow) then
    hold_for_workflow(workflow, queue, id, task, seq, audit, attempts)
    return true
  end
  if recoveries > 0 and (batch.size > 0 or request.holding > 0) then
    batch.waits = true
    if in_lane then return false end
    note_suspect(queue, id)
    return true
  end
  if exceeds_payload_limit(payload, batch.size, batch.bytes) then return false end
  batch.alone = recoveries > 0
  lease, seq = (integer(lease) or 0) + 1, seq + 1
  redis.call('HSET', job_key(id), 'status', 'processing', 'child', request.child, 'lease', text(lease),
    'started_ms', now_text, 'seq', text(seq))
  if workflow then move_in_workflow(id, 'queued', 'processing') end
  emit(id, 'processing', queue, task, request.child, attempts + 1, seq, audit)
  batch.entries[batch.size + 1] = request.mark .. id
  add_to_reply(id, payload, add_kind(queue, lease, attempts, recoveries, task, options))
  claimed[#claimed + 1], claimed[#claimed + 2] = now_text, id
  return true
end

-- Whether the one job that the child holds must run alone.
local function holds_one_that_runs_alone(request)
  local id = string.match(redis.call('LINDEX', processing_key(request.child), 0), ':(%S+)')
  return (integer(read(id, 'recoveries')[1]) or 0) > 0
end
-- @include "resent_claim"
