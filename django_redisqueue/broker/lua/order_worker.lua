-- order_worker: tells a worker to take no more jobs, to take them again, or to stop.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 worker; 5 what it is told, "<ms> <order>": it follows only what is later than the last;
--      6 for how many ms that is kept
-- Reply: 1 told, 0 no such worker has sent a heartbeat lately
-- The message reaches a worker at once; without it, its next heartbeat asks (heartbeat.lua).
-- @include "context"
local key = base .. 'worker:' .. ARGV[4]
if redis.call('EXISTS', key) == 0 then return 0 end
write_even_when_full()
redis.call('SET', key .. ':order', ARGV[5], 'PX', ARGV[6])
publish(control_channel, 'order ' .. ARGV[4] .. ' ' .. ARGV[5])
return 1
