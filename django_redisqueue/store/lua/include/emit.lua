-- emit: one transition, in the script that makes it: on the channel (a hint) at once, and in the stream (the truth)
-- by flush_events(), which every script that includes this calls at its end: one command for all of its events.
-- An entry: n, <events written before it, ever>, and then in the order in which they were made
--   event, <JSON>[, args|result|error, <text>]   of a job
--   workflow, <JSON>, name, <text>   of a workflow (flow_emit.lua)
-- `audit` thins at the source: '' or 'all', 'final', 'failed', 'none'.
-- `extra` is JSON text that begins with a comma, or ''; `name`, `value` the event's inline field. Bodies over
-- 1 KB stay in the job's hash.
-- @include "milestones"
expect(KEYS[1], 'hash')
expect(events_key, 'stream')
expect(milestones_key, 'list')
local MOST, LARGE = 100, 65536  -- events an entry, and bytes with which it is full
local INLINE = 1024
local function is_left_out(audit, status)
  if audit == 'final' then return status ~= 'completed' and status ~= 'failed' and status ~= 'cancelled' end
  return audit == 'none' or audit == 'failed' and status ~= 'failed'
end

-- What follows the id is mostly the same for the jobs of a batch that come into one status: it is put
-- together when it changes.
local tails = {}
local function tail_of(status, queue, task, child, attempt, seq)
  local last = tails[status]
  if not last or last[1] ~= seq or last[2] ~= attempt or last[3] ~= task or last[4] ~= queue or last[5] ~= child then
    last = { seq, attempt, task, queue, child, '","status":"' .. status .. '","queue":"' .. queue .. '","task":"'
      .. task .. '","workerId":"' .. child .. '","attempt":' .. attempt .. ',"seq":' .. seq .. ',"timestamp":'
      .. now_text }
    tails[status] = last
  end
  return last[6]
end

local pending, pending_events, pending_bytes = {}, 0, 0
local function flush_events()
  if pending_events == 0 then return end
  local total = redis.call('HINCRBY', KEYS[1], 'events', pending_events)
  local before = total - pending_events
  local entry = redis.call('XADD', events_key, '*', 'n', whole(before), unpack(pending))
  pending, pending_events, pending_bytes = {}, 0, 0
  note_milestone(entry, before, total)
end

local function collect(field, event, name, value)
  local at = #pending
  pending[at + 1], pending[at + 2] = field, event
  pending_events, pending_bytes = pending_events + 1, pending_bytes + #event
  if value then
    pending[at + 3], pending[at + 4] = name, value
    pending_bytes = pending_bytes + #value
  end
  if pending_events == MOST or pending_bytes >= LARGE then flush_events() end
end

-- The first of a script hears from PUBLISH whether anybody listens at all: no client can come in between, and most
-- often there is none.
local listeners
local function emit(id, status, queue, task, child, attempt, seq, audit, extra, name, value)
  if audit and is_left_out(audit, status) then return end
  local event = '{"jobId":"' .. id .. tail_of(status, queue, task, child, attempt, seq) .. (extra or '') .. '}'
  collect('event', event, name, value and #value <= INLINE and value)
  if listeners ~= 0 then listeners = redis.call('PUBLISH', channel, event) end
end
