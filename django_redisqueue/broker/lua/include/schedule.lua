-- schedule: periodic tasks. `schedules` has every schedule by the time when it is due next, inf if it does not fire
-- (paused, with an error, or with no further due time). Its hash has the definition, as Python encodes it
-- (core/schedules.py), and its state: next_ms, last_due_ms, last_job, last_ms, paused, and the counters fired, missed
-- and skipped.
-- `schedule_sets` has the sets of schedules of running workers by the time when each was first seen: the newest is
-- current, and only its definitions count. `schedule_sets:alive` has the time until which each counts as running.
local schedules_key, sets_key, alive_key = base .. 'schedules', base .. 'schedule_sets', base .. 'schedule_sets:alive'
local function schedule_key(name) return base .. 'schedule:' .. name end

local function expect_schedules(...)
  expect(schedules_key, 'zset')
  expect(sets_key, 'zset')
  expect(alive_key, 'zset')
  expect(timer_key, 'list')
  for _, name in ipairs({ ... }) do expect(schedule_key(name), 'hash') end
  refuse_when_moving()
end

local function current_set() return redis.call('ZRANGE', sets_key, -1, -1)[1] end

-- Puts a schedule where its state belongs.
local function sort_schedule(name)
  local next_ms, paused, problem = unpack(redis.call('HMGET', schedule_key(name), 'next_ms', 'paused', 'error'))
  local due = not paused and (problem or '') == '' and integer(next_ms)
  redis.call('ZADD', schedules_key, due and whole(due) or 'inf', name)
  if due then wake_timer_if_first(schedules_key, name) end
end
