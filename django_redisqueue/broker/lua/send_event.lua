-- send_event: wakes the jobs that wait for an event. A job that waits for it later finds it until its TTL.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 event; 5 payload JSON; 6 TTL ms
-- Reply: how many waiting jobs were woken; maintenance wakes the others (advance.lua)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "waits"
local event, payload, ttl_ms = ARGV[4], ARGV[5], ARGV[6]
expect(event_key(event), 'string')
expect(awaiting_key(event), 'zset')
refuse_when_moving()
redis.call('SET', event_key(event), payload, 'PX', ttl_ms)
if not wake_all(event) then defer('event:' .. event) end
flush()
return moved
