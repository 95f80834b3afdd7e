-- advance: takes up what other scripts left for later, up to 100 jobs a call, the oldest first; and looks at
-- the gathers whose time has come.
-- KEYS[1] meta
-- ARGV 1-3 context
-- Reply: 1 there is more, 0 there is not, or nothing of it can be done now
-- @include "context"
-- @include "emit"
-- @include "conclude"
-- @include "advance_some"
-- @include "gather_checks"
expect(gathers_key, 'zset')
expect(closed_key, 'set')
write_even_when_full()
for _, flow_id in ipairs(redis.call('ZRANGEBYSCORE', workflows_key, '-inf', now, 'LIMIT', 0, 10)) do
  local flow = load_flow(flow_id)  -- its lifetime is over
  if flow then clean_up(flow) else redis.call('ZREM', workflows_key, flow_id) end
end
local more = check_gathers()
advance_some()
flush()
if more then return 1 end
return moved > 0 and redis.call('EXISTS', flows_key) or 0
