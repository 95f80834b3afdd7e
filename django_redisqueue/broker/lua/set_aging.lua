-- set_aging: stores how long a job of a queue waits to gain one step of priority (include/aging.lua). Claims read it.
-- KEYS[1] meta
-- ARGV 1-3 context; then 2 fields per queue: its name, and ms or '' for no aging
-- Reply: how many queues have changed. A queue whose meta key has the wrong type is left as it is.
-- @include "context"
write_even_when_full()
local changed = 0
for at = 4, #ARGV, 2 do
  local key, ms = queue_key(ARGV[at], 'meta'), ARGV[at + 1]
  local before = redis.pcall('HGET', key, 'aging')
  if type(before) ~= 'table' and (before or '') ~= ms then
    if ms == '' then redis.call('HDEL', key, 'aging') else redis.call('HSET', key, 'aging', ms) end
    changed = changed + 1
  end
end
return changed
