-- events: publishes transitions from the script that performs them: at once on the channel (a hint), and by
-- flush_events() in the stream (the truth), in one XADD for all events of the script. Every script that includes this
-- file calls it at its end. A script whose transitions make no event counts in `unaudited` of meta, so that a heartbeat
-- can see activity (heartbeat.lua).
-- An entry: ':n', <events ever written before it>, and then, in order,
--   ':alike', <JSON>   what the events of the following jobs have in common: all but jobId. Mostly a batch has one.
--   <ids of jobs>, <text>   one event for each of these jobs, with the same text: its arguments, result or error, as
--     the status implies; '' if there is none or it exceeds INLINE and is only in the hash
--   ':workflow', <JSON>, ':name', <text>   an event of a workflow (workflow.lua)
-- @include "trim_index"
-- @include "event_json"
expect(KEYS[1], 'hash')
expect(events_key, 'stream')
expect(trim_index_key, 'list')
local MAX_EVENTS, MAX_BYTES = 100, 65536  -- events per entry, and the bytes at which it is full
local INLINE = 1024

-- What is to be written: fields and values, their bytes, number of events, and the last ':alike' among them.
local fields, field_count, bytes, event_count, last_shared = {}, 0, 0, 0, nil
local ids, id_count, last_text = {}, 0, nil  -- of events that differ in nothing else, and their text
local has_unaudited = false  -- whether there were transitions that make no event

-- Appends the events of `ids`, and then the field, if one is given.
local function append_field(field, value)
  local at, names = field_count, id_count > 0 and (id_count == 1 and ids[1] or table.concat(ids, ' ', 1, id_count))
  if names then
    fields[at + 1], fields[at + 2] = names, last_text
    at, bytes, id_count = at + 2, bytes + #names + #last_text, 0
  end
  if field then
    fields[at + 1], fields[at + 2] = field, value
    at, bytes = at + 2, bytes + #value
  end
  field_count = at
end

local function flush_events()
  if event_count == 0 then
    if has_unaudited then redis.call('HINCRBY', KEYS[1], 'unaudited', 1) end
    has_unaudited = false
    return
  end
  append_field()
  local total = increment(KEYS[1], 'events', event_count)
  local before = total - event_count
  local entry = redis.call('XADD', events_key, '*', ':n', whole(before), unpack(fields, 1, field_count))
  fields, field_count, bytes, event_count, last_shared = {}, 0, 0, 0, nil
  update_trim_index(entry, before, total)
end

-- The first PUBLISH of a script tells whether any client listens; none can subscribe before the script ends.
local listeners
local function add_event(id, shared, text)
  if text ~= last_text or shared ~= last_shared then
    append_field()
    if bytes >= MAX_BYTES then flush_events() end
    if shared ~= last_shared then append_field(':alike', shared) end
    last_shared, last_text = shared, text
  end
  id_count, event_count = id_count + 1, event_count + 1
  ids[id_count] = id
  if event_count == MAX_EVENTS then flush_events() end
  if listeners ~= 0 then
    listeners = publish_event(id, shared)
  end
end
