-- new_job: the hash and the first event of a new job. Default values are not stored, because every field costs memory.
-- @include "index"
local function add_field(fields, name, value)
  fields[#fields + 1], fields[#fields + 2] = name, value
end

-- before: the job whose end it waits for (duplicates.lua), besides `parents` others.
local function add_successor(fields, before, parents)
  add_field(fields, 'before', before)
  add_field(fields, 'waits', (parents or 0) + 1)
end

-- unique: its unique key; lane: its limits and its share of the queue; '' = none. The client encodes both. watched: the
-- letters of `watched` (watch.lua) that it has in addition to those of its index sets, its unique key and its lane.
local function new_job_fields(status, queue, task, payload, options, priority, audit, unique, lane, watched)
  watched = (watched or '') .. (is_indexed(options) and 'i' or '') .. (unique ~= '' and 'u' or '')
    .. (lane ~= '' and 'l' or '')
  local fields = { 'task', task, 'payload', payload, 'status', status, 'enqueued_ms', now_text }
  if queue ~= 'default' then add_field(fields, 'queue', queue) end
  if priority ~= '0' then add_field(fields, 'priority', priority) end
  if options ~= '' then add_field(fields, 'options', options) end
  if audit ~= '' then add_field(fields, 'audit', audit) end
  if watched ~= '' then add_field(fields, 'watched', watched) end
  if unique ~= '' then add_field(fields, 'unique', unique) end
  if lane ~= '' then add_field(fields, 'lane', lane) end
  -- see fast_path/implied_fields.lua
  if audit ~= '' or watched ~= '' and watched ~= 'l' then add_field(fields, 'seq', '1') end
  return fields
end

-- The first event of the job, the only one with its arguments (unless redacted), priority, tags and correlation id.
local function emit_enqueued(id, status, queue, task, payload, options, priority, audit, due_ms)
  local extra = due_ms and ',"dueMs":' .. whole(due_ms) or ''
  if priority ~= '0' then extra = extra .. ',"priority":' .. tonumber(priority) end
  local shown = options == '' or not string.find(options, '"redact":', 1, true)
  emit(id, status, queue, task, '', '0', '1', audit, extra .. mirrored_options(options), shown and payload)
end
