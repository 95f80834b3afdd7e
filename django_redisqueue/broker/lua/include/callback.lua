-- callback: the job that is created when a workflow or a gather ends. The hash there describes it in the fields
-- <which>_task, _payload, ..., of which empty ones may be missing.
-- @include "waiting"
-- @include "pending_writes"
-- @include "steps"
-- @first_use
-- @include "new_job"
-- @include "duplicates"
-- The id is unique to the callback, so the job is created once, unless another job has its unique key.
-- gather_key: that of its gather, or nil. replaces_cancelled: see `admit`. Returns whether there is such a job.
local function call_back(key, which, id, gather_key, replaces_cancelled)
  local task, payload, queue, options, priority, audit, when, unique, lane = unpack(redis.call('HMGET', key,
    which .. '_task', which .. '_payload', which .. '_queue', which .. '_options', which .. '_priority',
    which .. '_audit', which .. '_when', which .. '_unique', which .. '_lane'))
  if not task then return false end
  if redis.call('EXISTS', job_key(id)) == 1 then return true end
  queue, options, priority, audit, when = queue or 'default', options or '', priority or '0', audit or '', when or ''
  unique, lane = unique or '', lane or ''
  local owner, _, before
  if unique ~= '' then
    local new = { id = id, unique = unique, queue = queue, payload = payload, options = options, lane = lane,
      replaces_cancelled = replaces_cancelled }
    owner, _, before = admit(new, ALIAS_MS)
  end
  if owner then return false end
  local fields = new_job_fields('waiting', queue, task, payload, options, priority, audit, unique, lane)
  note_lane(lane)
  if gather_key then add_field(fields, 'gather', gather_key) end
  if when ~= '' then add_field(fields, 'when', when) end
  if before then add_successor(fields, before) end
  redis.call('HSET', job_key(id), unpack(fields))
  index(id, options)
  if unique ~= '' then take_keys(id, unique) end
  if is_sound(queue) then count_enqueued(queue, 1) end
  if before then
    succeed(id, before)
    if is_sound(queue) then join_waiting(queue, id) end
    emit_enqueued(id, 'waiting', queue, task, payload, options, priority, audit)
    return true
  end
  release_waiting(id, { queue = queue, task = task, seq = 0, priority = priority, audit = audit, when = when,
    lane = lane ~= '' and lane or nil })
  return true
end
