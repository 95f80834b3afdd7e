-- new_job: what is written of a job that is made: only what is not the default, for every field costs memory.
-- @include "index"
local function add(fields, name, value)
  fields[#fields + 1], fields[#fields + 2] = name, value
end

local function new_fields(status, queue, task, payload, options, priority, audit, watched)
  local fields = { 'task', task, 'payload', payload, 'status', status, 'enqueued_ms', now_text }
  if queue ~= 'default' then add(fields, 'queue', queue) end
  if priority ~= '0' then add(fields, 'priority', priority) end
  if options ~= '' then add(fields, 'options', options) end
  if audit ~= '' then add(fields, 'audit', audit) end
  if watched then add(fields, 'watched', watched) end
  if audit ~= '' or watched then add(fields, 'seq', '1') end  -- see unsaid.lua
  return fields
end

-- Its first event, which alone has its arguments (unless they are secret), its priority and its tags.
local function tell_of_new(id, status, queue, task, payload, options, priority, audit, due_ms)
  local extra = due_ms and ',"dueMs":' .. whole(due_ms) or ''
  if priority ~= '0' then extra = extra .. ',"priority":' .. tonumber(priority) end
  local shown = options == '' or not string.find(options, '"redact":', 1, true)
  emit(id, status, queue, task, '', '0', '1', audit, extra .. tags_in(options), shown and payload)
end
