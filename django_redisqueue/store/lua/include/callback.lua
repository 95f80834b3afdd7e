-- callback: the job that the end of a workflow or of a gather calls for. The hash there says what it is, in
-- fields <which>_task, _payload, ... of which those that are empty may be missing (callbacks.py).
-- @include "waiting"
-- @include "new_job"
-- Its id is of its own, so it is made once. gather: the key of its gather, or nil. Returns whether there is one.
local function call_back(key, which, id, gather)
  local f = redis.call('HMGET', key, which .. '_task', which .. '_payload', which .. '_queue', which .. '_options',
    which .. '_priority', which .. '_audit', which .. '_when')
  if not f[1] then return false end
  if redis.call('EXISTS', job_key(id)) == 1 then return true end
  local queue, options, priority, audit, when = f[3] or 'default', f[4] or '', f[5] or '0', f[6] or '', f[7] or ''
  local fields = new_fields('waiting', queue, f[1], f[2], options, priority, audit)
  if gather then add(fields, 'gather', gather) end
  if when ~= '' then add(fields, 'when', when) end
  redis.call('HSET', job_key(id), unpack(fields))
  index_new(id, options)
  if is_sound(queue) then count_made(queue, 1) end
  free(id, { queue = queue, task = f[1], seq = 0, priority = priority, audit = audit, when = when })
  return true
end
