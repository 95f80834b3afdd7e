-- check_wait: asks whether a running job's wait is over, and records until when it lasts.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 id; 6 lease; 7 event, or the name of a sleep; 8 whether it is a sleep (0/1); 9 how long
--      it waits, ms ('' forever); 10 the most bytes that all steps of the job may take
-- Reply: { 1, payload } the wait is over; { 2 } its timeout has passed; { 3, due ms ('' never) } it continues; { 0 }
--      the lease is lost; { -1 } the job's steps would take too many bytes
-- @include "context"
-- @include "waits"
local child, id, lease, event, sleeps, ms, limit = unpack(ARGV, 4, 10)
sleeps, limit = sleeps == '1', tonumber(limit)
local status, holder, held_lease, generation = unpack(read(id, 'status', 'child', 'lease', 'generation'))
if status ~= 'processing' or holder ~= child or lease_of(status, held_lease) ~= lease then return { 0 } end
expect(steps_key(id), 'hash')
expect(event_key(event), 'string')
expect(awaiting_key(event), 'zset')
expect(wait_list_key(sleeps and '' or event), 'zset')
generation = generation or '0'

local field = sleeps and 'sleep:' .. event or wait_field(event)
local kind, known = string.match(redis.call('HGET', steps_key(id), field) or '', '^(%a+) (.*)$')
if kind == 'event' then return { 1, known } end
if kind == 'late' and known == generation then return { 2 } end
local payload = not sleeps and redis.call('GET', event_key(event))
if payload then
  if not remember(id, field, 'event ' .. payload, limit) then return { -1 } end
  return { 1, payload }
end
-- A requeue lets a wait start anew, but not a sleep.
local noted_due, noted_generation = string.match(known or '', '^(%d*) ?(%d*)$')
if noted_generation == '' then noted_generation = '0' end
local is_noted = kind == 'until' and (sleeps or noted_generation == generation)
local due = is_noted and noted_due or ms == '' and '' or whole(now + tonumber(ms))
if due ~= '' and tonumber(due) <= now then
  if sleeps then return { 1, 'null' } end
  if not remember(id, field, 'late ' .. generation, limit) then return { -1 } end
  redis.call('ZREM', awaiting_key(event), id)
  return { 2 }
end
local note = 'until ' .. due .. ((sleeps or generation == '0') and '' or ' ' .. generation)
if not is_noted and not remember(id, field, note, limit) then return { -1 } end
return { 3, due }
