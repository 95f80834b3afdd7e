-- promote: moves due jobs into their queues, at most 100 per call, and tells the timer when to call again.
-- KEYS[1] meta
-- ARGV 1-3 context; then names of queues, which become known; all known queues are served
-- Reply: { moved, ms until something is due next (0 there is more now, -1 nothing is), {broken}, ms until the next
--      schedule is due (0 now, -1 never; not counted in the second) }
--      What is due next may also be work for advance.lua: deferred work, a workflow's clean-up, or a check of a gather.
--      Broken: pairs of a queue with a key of the wrong type and its problem (context.lua).
-- All queues with due jobs get equal shares of a call, so that none waits for another's backlog.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "workflow"
-- @include "gather_plan"
-- @include "promote"
-- @include "schedule"
expect(gathers_key, 'zset')
expect(queues_key, 'set')
expect(schedules_key, 'zset')

write_even_when_full()
redis.call('DEL', timer_key)
if #ARGV > 3 then redis.call('SADD', queues_key, unpack(ARGV, 4)) end
local next_due, broken, due = math.huge, {}, {}
local function first_due(queue)
  local earliest = math.huge
  for _, list in ipairs({ 'scheduled', 'retrying' }) do
    local first = redis.call('ZRANGE', queue_key(queue, list), 0, 0, 'WITHSCORES')
    if first[2] then earliest = math.min(earliest, tonumber(first[2])) end
  end
  return earliest
end

for _, queue in ipairs(redis.call('SMEMBERS', queues_key)) do
  if is_sound(queue) then
    local first = first_due(queue)
    if first <= now then
      due[#due + 1] = { queue = queue, first = first }
    else
      next_due = math.min(next_due, first)
    end
  else
    broken[#broken + 1], broken[#broken + 2] = queue, problem_of(queue)
  end
end
table.sort(due, function(one, other) return one.first < other.first end)

local moved, left = 0, 100
for at, one in ipairs(due) do
  local here = left > 0 and promote_due(one.queue, math.max(1, math.floor(left / (#due - at + 1)))) or 0
  if here > 0 then wake(one.queue) end
  moved, left = moved + here, left - here
  next_due = math.min(next_due, first_due(one.queue))
end
if lanes().call_changed_lanes() then next_due = now end
lanes().call_due_lanes()
for _, key in ipairs({ workflows_key, gathers_key, base .. 'limits:due' }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then next_due = math.min(next_due, tonumber(first[2])) end
end
if redis.call('EXISTS', deferred_key) == 1 then next_due = now end
local schedule = tonumber(redis.call('ZRANGE', schedules_key, 0, 0, 'WITHSCORES')[2]) or math.huge
local function until_ms(due_ms) return due_ms < math.huge and math.max(0, due_ms - now) or -1 end
local reply = { moved, until_ms(next_due), broken, until_ms(schedule) }
flush_events()
return reply
