-- pause: stops claims from a queue (running jobs finish), or allows them again.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 '1' to pause, '0' to resume; 6 who did it, or ''
-- Reply: 1 changed, 0 no change
-- @include "context"
-- @include "place"
-- @include "pause_history"
local queue = ARGV[4]
expect_queue(queue, 'meta', 'wake')
expect_pause_history(queue)
write_even_when_full()
local meta_key = queue_key(queue, 'meta')
if ARGV[5] == '1' then
  local changed = redis.call('HSETNX', meta_key, 'paused', now)
  if changed == 1 and ARGV[6] ~= '' then redis.call('HSET', meta_key, 'paused_by', ARGV[6]) end
  if changed == 1 then remember_pause(queue, '1', '', ARGV[6]) end
  return changed
end
local changed = redis.call('HDEL', meta_key, 'paused')
redis.call('HDEL', meta_key, 'paused_by')
if changed == 1 then remember_pause(queue, '0', '', ARGV[6]) end
if has_work(queue) then wake(queue) end
return changed
