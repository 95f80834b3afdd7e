-- advance: takes up what other scripts left for later, up to 100 jobs a call, the oldest first.
-- KEYS[1] meta
-- ARGV 1-3 context
-- Reply: 1 there is more, 0 there is not, or nothing of it can be done now
-- @include "context"
-- @include "emit"
-- @include "conclude"
-- @include "advance_some"
expect(events_key, 'stream')
write_even_when_full()
for _, flow_id in ipairs(redis.call('ZRANGEBYSCORE', workflows_key, '-inf', now, 'LIMIT', 0, 10)) do
  redis.call('ZREM', workflows_key, flow_id)  -- its lifetime is over
  redis.call('RPUSH', flows_key, 'clean:' .. flow_id .. ':0')
end
advance_some()
flush()
return moved > 0 and redis.call('EXISTS', flows_key) or 0
