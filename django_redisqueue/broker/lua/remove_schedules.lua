-- remove_schedules: removes schedules; their jobs stay.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 set that no longer has them, or '' to remove those of the admin; 5.. names (1-100)
-- Reply, one per name: 1 removed, 0 unknown, -1 the set is not the current one, or another source defines the schedule
-- @include "context"
-- @include "schedule"
local set, codes = ARGV[4], {}
expect_schedules(unpack(ARGV, 5))
write_even_when_full()
for n = 5, #ARGV do
  local key = schedule_key(ARGV[n])
  local source = redis.call('HGET', key, 'source')
  if source and (source == 'code') ~= (set ~= '') or set ~= '' and current_set() ~= set then
    codes[#codes + 1] = -1
  else
    codes[#codes + 1] = redis.call('DEL', key)
    redis.call('ZREM', schedules_key, ARGV[n])
  end
end
return codes
