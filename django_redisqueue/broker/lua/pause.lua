-- pause: stops claims from a queue (running jobs finish), or allows them again.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 '1' to pause, '0' to resume
-- Reply: 1 changed, 0 it was so already
-- @include "context"
-- @include "place"
local queue = ARGV[4]
expect_queue(queue, 'meta', 'wake')
write_even_when_full()
if ARGV[5] == '1' then return redis.call('HSETNX', queue_key(queue, 'meta'), 'paused', now) end
local changed = redis.call('HDEL', queue_key(queue, 'meta'), 'paused')
if has_work(queue) then wake(queue) end
return changed
