-- announce: what happened, in the script in which it happens: on the channel (a hint) at once, and in the stream (the
-- truth) by flush_events(), which every script that includes this calls at its end: one command for all of its events.
-- An entry: ':n', <events written before it, ever>, and then in the order in which they were made
--   ':alike', <JSON>   what the events of jobs from here on say, but for jobId: mostly all of a batch say the same
--   <ids of jobs>, <text>   an event of each of these jobs, with the same text beside it: its arguments, result or
--     error, as the status has it, or '' (there is none, or it has over 1 KB and stands in the hash alone)
--   ':workflow', <JSON>, ':name', <text>   an event of a workflow (flow_emit.lua)
-- @include "milestones"
expect(KEYS[1], 'hash')
expect(events_key, 'stream')
expect(milestones_key, 'list')
local MOST, LARGE = 100, 65536  -- events an entry, and bytes with which it is full
local INLINE = 1024

-- What waits to be written: fields and values, their bytes, and how many events; the last ':alike' of them.
local pending, filled, bytes, told, said = {}, 0, 0, 0, nil
local run, length, beside = {}, 0, nil  -- ids of events that say the same, and the text beside them

-- Ends the run; then a field that stands beside the events, if one is given.
local function collect(field, value)
  local at, ids = filled, length > 0 and (length == 1 and run[1] or table.concat(run, ' ', 1, length))
  if ids then
    pending[at + 1], pending[at + 2] = ids, beside
    at, bytes, length = at + 2, bytes + #ids + #beside, 0
  end
  if field then
    pending[at + 1], pending[at + 2] = field, value
    at, bytes = at + 2, bytes + #value
  end
  filled = at
end

local function flush_events()
  if told == 0 then return end
  collect()
  local total = redis.call('HINCRBY', KEYS[1], 'events', told)
  local before = total - told
  local entry = redis.call('XADD', events_key, '*', ':n', whole(before), unpack(pending, 1, filled))
  pending, filled, bytes, told, said = {}, 0, 0, 0, nil
  note_milestone(entry, before, total)
end

-- The first of a script hears from PUBLISH whether anybody listens at all: no client can come in between, and most
-- often there is none.
local listeners
local function announce(id, alike, text)
  if text ~= beside or alike ~= said then
    collect()
    if bytes >= LARGE then flush_events() end
    if alike ~= said then collect(':alike', alike) end
    said, beside = alike, text
  end
  length, told = length + 1, told + 1
  run[length] = id
  if told == MOST then flush_events() end
  if listeners ~= 0 then
    listeners = redis.call('PUBLISH', channel, '{"jobId":"' .. id .. '",' .. string.sub(alike, 2))
  end
end

local function alike_of(status, queue, task, child, attempt, seq, extra)
  return '{"status":"' .. status .. '","queue":"' .. queue .. '","task":"' .. task .. '","workerId":"' .. child
    .. '","attempt":' .. attempt .. ',"seq":' .. seq .. ',"timestamp":' .. now_text .. extra .. '}'
end
