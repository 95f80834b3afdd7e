-- promote: moves due jobs into their queues; tells the timer when to come back.
-- KEYS[1] meta
-- ARGV 1-3 context; then queue names
-- Reply: { moved, ms until the next one is due (0 when more are due now, -1 when there is none) }
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "promote"
expect(events_key, 'stream')
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
return { moved, next_due and math.max(0, next_due - now) or -1 }
