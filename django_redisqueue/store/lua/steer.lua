-- steer: pauses, releases, cancels or cleans up a workflow. What concerns its many jobs is done in steps.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 workflow id; 5 pause, release, cancel or clean
-- Reply: 1 done, 0 nothing to do, -1 not known
-- Pausing touches no job: a claim that meets one of them holds it back (claim_batch.lua).
-- @include "context"
-- @include "emit"
-- @include "conclude"
local id, order = ARGV[4], ARGV[5]
expect(flow_key(id), 'hash')
local flow = load_flow(id)
if not flow then return -1 end
local is_over = flow.status ~= 'running' and flow.status ~= 'building'
write_even_when_full()

if order == 'pause' then
  if is_over or flow.paused then return 0 end
  redis.call('HSET', flow_key(id), 'paused_ms', now_text)
  emit_flow(flow, 'paused')
elseif order == 'release' then
  if not flow.paused then return 0 end
  redis.call('HDEL', flow_key(id), 'paused_ms')
  flow.paused = false
  set_flow(flow, 'status', flow.status)  -- so that its end is looked for
  emit_flow(flow, flow.status)
  leave_for_later('held:' .. id)
elseif order == 'cancel' then
  if flow.status == 'cancelled' or flow.status == 'completed' then return 0 end
  end_flow(flow, 'cancelled')
  leave_for_later('cancel:' .. id .. ':0')
elseif order == 'clean' then
  if not is_over then return 0 end
  clean_up(flow)
else
  error('steer knows pause, release, cancel and clean')
end
flush()
return 1
