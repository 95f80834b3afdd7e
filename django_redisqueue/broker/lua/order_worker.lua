-- order_worker: tells a worker to claim no more jobs, to resume claiming, or to stop.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 worker; 5 the order, "<ms> <order>": the worker follows only orders later than its last one;
--      6 for how many ms the order is kept
-- Reply: 1 sent, 0 no such worker has sent a heartbeat lately
-- The message reaches a worker at once; if it is lost, the worker's next heartbeat asks (heartbeat.lua).
-- @include "context"
local key = base .. 'worker:' .. ARGV[4]
if redis.call('EXISTS', key) == 0 then return 0 end
write_even_when_full()
redis.call('SET', key .. ':order', ARGV[5], 'PX', ARGV[6])
publish(control_channel, 'order ' .. ARGV[4] .. ' ' .. ARGV[5])
return 1
