-- announce_schedules: announces a running worker with this set of schedules, and asks whether the set is current.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 set (a digest); 5 ms after which it counts as gone; 6 '1' if all schedules are defined, or '0'
-- Reply: 0 another set is newer, 1 it is current and defined, 2 it is current and has to be defined
-- A set that no worker announces any more is forgotten. So the newest code wins while it runs, whatever order workers
-- start in, and after a rollback the older code wins.
-- @include "context"
-- @include "schedule"
local set, ttl_ms, is_defined = ARGV[4], assert(tonumber(ARGV[5]), 'no duration'), ARGV[6] == '1'
expect(KEYS[1], 'hash')
expect_schedules()

redis.call('ZADD', sets_key, 'NX', now_text, set)
redis.call('ZADD', alive_key, whole(now + ttl_ms), set)
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', alive_key, '-inf', '(' .. now_text, 'LIMIT', 0, 100)) do
  redis.call('ZREM', alive_key, gone)
  redis.call('ZREM', sets_key, gone)
end
if current_set() ~= set then return 0 end
if is_defined then redis.call('HSET', KEYS[1], 'schedule_set', set) end
return redis.call('HGET', KEYS[1], 'schedule_set') == set and 1 or 2
