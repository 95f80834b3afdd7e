-- set_limit: sets the number of one limit key or the weight of one share manually, which overrides those of jobs, or
-- removes the override. Lanes that wait for the limit are called as far as it has room now.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 limit key, or s:<share>; 5 number (include/limits.lua) or weight, or '' to remove it
-- Reply: 1 changed, 0 no change
-- @include "context"
-- @include "emit"
-- @include "lanes"
local key, number = ARGV[4], ARGV[5]
local limits_key, field = base .. 'limits', '=' .. key
for _, name in ipairs({ 'limits', 'limits:passes' }) do expect(base .. name, 'hash') end
for _, name in ipairs({ 'slots', 'limits:waiting', 'limits:due' }) do expect(base .. name, 'zset') end
expect(timer_key, 'list')
write_even_when_full()
local before = redis.call('HGET', limits_key, field) or ''
if before == number then return 0 end
if number == '' then
  redis.call('HDEL', limits_key, field)
else
  redis.call('HSET', limits_key, field, number)
end
if (before == '') ~= (number == '') and increment(limits_key, 'set', number == '' and -1 or 1) <= 0 then
  redis.call('HDEL', limits_key, 'set')
end
if string.sub(key, 1, 2) ~= 's:' then lanes().call_lanes(lanes().limit_of(key), 100) end
return 1
