-- audit_lanes: repairs the effects of manual changes: slots of jobs that are not processing, and lanes with queued jobs
-- that no claim would ever look at. Handles at most 100 slots, rates or jobs per call; the first call of a round begins
-- with the slots (c:...) and continues with the rates (r:...).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue to continue with, '' for the slots; 5 position there, as replied; both '' to begin
-- Reply: { repairs, queue, position }, the last two '' at the end of the round
-- Queued jobs that are not in `keyed`, processing jobs without their slots, and lanes of a queue with a broken key are
-- left as they are.
-- @include "context"
-- @include "place"
-- @include "lane_audit"
local queue, position = ARGV[4], ARGV[5]
for _, name in ipairs({ 'limits', 'limits:changed', 'limits:passes' }) do expect(base .. name, 'hash') end
for _, name in ipairs({ 'slots', 'limits:waiting', 'limits:due', 'limits:rates', 'chunks:waiting' }) do
  expect(base .. name, 'zset')
end
expect(queues_key, 'set')
expect(timer_key, 'list')
write_even_when_full()

local left = 100
if queue == '' then
  local from = position
  position, left = audit_slots(from, left)
  if left <= 0 then return { repaired, '', position } end
  position, left = forget_full_rates(from, left)
  if left <= 0 then return { repaired, '', position } end
end
local queues = redis.call('SMEMBERS', queues_key)
table.sort(queues)
for _, name in ipairs(queues) do
  if name >= queue and is_sound(name) then
    position, left = audit_keyed(name, name == queue and position or '', left)
    if left <= 0 then return { repaired, name, position } end
  end
end
return { repaired, '', '' }
