-- pause_schedule: stops a schedule, or lets it continue with its next due time.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 name; 5 '1' to pause, '0' to resume; 6 to resume, its next due time in ms, or '' (none)
-- Reply: 1 changed, 0 no change, -1 unknown
-- @include "context"
-- @include "schedule"
local name, pauses, next_ms = ARGV[4], ARGV[5] == '1', ARGV[6]
local key = schedule_key(name)
expect_schedules(name)
write_even_when_full()
if redis.call('EXISTS', key) == 0 then return -1 end
if pauses then
  if redis.call('HSETNX', key, 'paused', now_text) == 0 then return 0 end
else
  if redis.call('HDEL', key, 'paused') == 0 then return 0 end
  redis.call('HSET', key, 'next_ms', next_ms)
end
sort_schedule(name)
return 1
