-- types: law 1: types are checked before the first write, so that no write can fail half-way.
local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    error('WRONGKEY ' .. key .. ' ' .. found .. ' ' .. kind)
  end
end
-- Functions, and no tables, which would have to be made in every run of a script.
-- All of a queue's keys, those that are mostly there first.
local function keys_of_a_queue()
  return 'meta', 'completed', 'queued', 'processing', 'failed', 'cancelled', 'wake', 'scheduled', 'retrying',
    'priority', 'waiting'
end
local function type_of(list)
  if list == 'meta' then return 'hash' end
  if list == 'queued' or list == 'wake' then return 'list' end
  return 'zset'
end
local function expect_queue(queue, ...)
  for _, list in ipairs({ ... }) do expect(queue_key(queue, list), type_of(list)) end
end

-- The first key of a queue that is of a wrong type, what it is and what it should be. One look tells how many are
-- there, so that mostly few are looked at one by one.
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

-- What is wrong with a queue, or ''. A queue with a wrong key stands still; the others of a script go on.
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

-- The same for jobs whose queues are not known yet.
local function expect_queues_of(ids)
  for _, id in ipairs(ids) do
    local f = read(id, 'status', 'queue')
    if f[1] then expect_all(f[2] or 'default') end
  end
end

local function expect_flows()
  if redis.call('EXISTS', flows_key, workflows_key, timer_key) == 0 then return end
  expect(flows_key, 'list')
  expect(workflows_key, 'zset')
  expect(timer_key, 'list')
end
