-- define_schedules: creates or changes schedules; repeating the call changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 set that they belong to, or '' for those of the admin; then for each schedule (1-100): its name,
--      its next due time in ms or '' (none), the number of its fields, and these with their values
-- Reply, one per schedule: 1 created or changed, 0 already known, -1 the set is not the current one, -2 the code
--      defines a schedule of this name
-- A due time that has passed stays due. The caller supplies the next one, which is unchanged unless the schedule's due
-- times have changed.
-- @include "context"
-- @include "schedule"
local set = ARGV[4]
local names, found, at = {}, {}, 5
while at <= #ARGV do
  local name, next_ms, count = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local fields = { unpack(ARGV, at + 3, at + 2 + 2 * count) }
  assert(next_ms == '' or tonumber(next_ms), 'next_ms is not a number')
  names[#names + 1] = name
  found[#found + 1] = { name = name, next_ms = next_ms, fields = fields }
  at = at + 3 + 2 * count
end
expect_schedules(unpack(names))

local function value_in(fields, name)
  for n = 1, #fields, 2 do
    if fields[n] == name then return fields[n + 1] end
  end
end

local function define(schedule)
  local key, fields = schedule_key(schedule.name), schedule.fields
  local digest, next_ms, source, paused = unpack(redis.call('HMGET', key, 'digest', 'next_ms', 'source', 'paused'))
  if set == '' and source == 'code' then return -2 end
  if digest == value_in(fields, 'digest') then return 0 end
  if paused and source ~= value_in(fields, 'source') then
    redis.call('HDEL', key, 'paused') -- it belongs to the admin's row that this one replaces
    next_ms = ''
  end
  local old = integer(next_ms)
  if not old or old > now then next_ms = schedule.next_ms end
  redis.call('HSET', key, 'next_ms', next_ms, unpack(fields))
  sort_schedule(schedule.name)
  return 1
end

local is_current, codes = set == '' or current_set() == set, {}
for n, schedule in ipairs(found) do codes[n] = is_current and define(schedule) or -1 end
return codes
