-- types: checks that keys have the types that scripts rely on. Included by context.lua.
-- Law 1: types are checked before the first write, so that no write fails half-way.
local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    error('WRONGKEY ' .. key .. ' ' .. found .. ' ' .. kind)
  end
end
-- All keys of a queue, the usual ones first. A function, because a table would be built in every run of a script.
local function keys_of_a_queue()
  return 'meta', 'completed', 'queued', 'processing', 'failed', 'cancelled', 'wake', 'scheduled', 'retrying',
    'priority', 'waiting', 'keyed', 'shares', 'passes', 'parked'
end
local function type_of(list)
  if list == 'meta' or list == 'parked' then return 'hash' end
  if list == 'queued' or list == 'wake' then return 'list' end
  return 'zset'
end
local function expect_queue(queue, ...)
  for _, list in ipairs({ ... }) do expect(queue_key(queue, list), type_of(list)) end
end

-- The first key of a queue with a wrong type, its type and the right one. EXISTS tells how many there are, so that
-- mostly few are examined one by one.
local function first_wrong(queue)
  local lists, keys = { keys_of_a_queue() }, {}
  for at, list in ipairs(lists) do keys[at] = queue_key(queue, list) end
  local left, at = redis.call('EXISTS', unpack(keys)), 0
  while left > 0 and at < #keys do
    at = at + 1
    local found = redis.call('TYPE', keys[at]).ok
    if found ~= 'none' then
      if found ~= type_of(lists[at]) then return keys[at], found, type_of(lists[at]) end
      left = left - 1
    end
  end
end

-- The problem of a queue, or ''. A queue with a broken key stands still; other queues of the same call go on.
local problems = {}
local function problem_of(queue)
  if not problems[queue] then
    local key, found, kind = first_wrong(queue)
    problems[queue] = key and 'WRONGKEY ' .. key .. ' ' .. found .. ' ' .. kind or ''
  end
  return problems[queue]
end
local function is_sound(queue) return problem_of(queue) == '' end

local function expect_all(queue)
  if not is_sound(queue) then error(problem_of(queue)) end
end

-- The same for the queues of these jobs.
local function expect_queues_of(ids)
  for _, id in ipairs(ids) do
    local status, queue = unpack(read(id, 'status', 'queue'))
    if status then expect_all(queue or 'default') end
  end
end

local function expect_workflow_keys()
  if redis.call('EXISTS', deferred_key, workflows_key, timer_key) == 0 then return end
  expect(deferred_key, 'list')
  expect(workflows_key, 'zset')
  expect(timer_key, 'list')
end
