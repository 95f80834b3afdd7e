-- promote: moves due jobs into their queues; tells the timer when to come back.
-- KEYS[1] meta
-- ARGV 1-3 context; then queue names
-- Reply: { moved, ms until the next thing is due (0 when there is more now, -1 when there is none) }
--      That may also be something for advance.lua: what was left for later, a workflow's clean-up, or a
--      look at a gather.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "flows"
-- @include "gather_plan"
-- @include "promote"
expect(gathers_key, 'zset')
for at = 4, #ARGV do
  expect_queue(ARGV[at], 'queued', 'priority', 'scheduled', 'retrying', 'wake', 'meta')
end

write_even_when_full()
redis.call('DEL', timer_key)
local moved, next_due = 0, nil
for at = 4, #ARGV do
  local queue = ARGV[at]
  local here = moved < 100 and promote_due(queue, 100 - moved) or 0
  if here > 0 then wake(queue) end
  moved = moved + here
  for _, list in ipairs({ 'scheduled', 'retrying' }) do
    local first = redis.call('ZRANGE', queue_key(queue, list), 0, 0, 'WITHSCORES')
    if first[2] then next_due = math.min(next_due or math.huge, tonumber(first[2])) end
  end
end
for _, key in ipairs({ workflows_key, gathers_key }) do
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  if first[2] then next_due = math.min(next_due or math.huge, tonumber(first[2])) end
end
if redis.call('EXISTS', flows_key) == 1 then next_due = now end
flush_events()
return { moved, next_due and math.max(0, next_due - now) or -1 }
