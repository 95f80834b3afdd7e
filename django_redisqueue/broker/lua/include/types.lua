-- types: checks that keys have the types that scripts rely on. Included by context.lua.
-- Law 1: types are checked before the first write, so that no write fails halfway.
-- How many members a key has, 0 if it does not exist; nil if it has another type. TYPE is asked only for the message,
-- because its reply, a table, costs more than a number.
local function length_of(key, kind)
  local command = kind == 'zset' and 'ZCARD' or kind == 'list' and 'LLEN' or kind == 'hash' and 'HLEN'
    or kind == 'stream' and 'XLEN' or kind == 'set' and 'SCARD' or 'STRLEN'
  local length = redis.pcall(command, key)
  return type(length) == 'number' and length or nil
end
local function wrong_key(key, kind) return 'WRONGKEY ' .. key .. ' ' .. redis.call('TYPE', key).ok .. ' ' .. kind end
local function expect(key, kind)
  if not length_of(key, kind) then error(wrong_key(key, kind)) end
end

-- All keys of a queue, the USUAL ones first. A function, because a table would be built in every run of a script.
local USUAL = 5
local function keys_of_a_queue()
  return 'meta', 'completed', 'queued', 'processing', 'wake', 'failed', 'cancelled', 'scheduled', 'retrying',
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

local problems = {}  -- by queue
local is_bare = {}  -- whether a queue had only its usual keys when it was checked for a problem
-- What is wrong with the first key of a queue that has the wrong type, or ''. EXISTS tells how many keys there are, so
-- that usually only a few are examined one by one.
local function first_problem(queue)
  local lists, keys, prefix = { keys_of_a_queue() }, { keys_of_a_queue() }, base .. 'q:' .. queue
  for at, list in ipairs(lists) do keys[at] = list == 'queued' and prefix or prefix .. ':' .. list end
  local left, at = redis.call('EXISTS', unpack(keys)), 0
  while left > 0 and at < #keys do
    at = at + 1
    local kind = type_of(lists[at])
    local length = length_of(keys[at], kind)
    if not length then return wrong_key(keys[at], kind) end
    if length > 0 then left = left - 1 end
  end
  is_bare[queue] = at <= USUAL
  return ''
end

-- The problem of a queue, or ''. A queue with a broken key is blocked; other queues of the same call are not.
local function problem_of(queue)
  if not problems[queue] then problems[queue] = first_problem(queue) end
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

-- Returns whether neither these nor the caller's keys exist.
local has_expected_workflow_keys
local function expect_workflow_keys(...)
  has_expected_workflow_keys = true
  if redis.call('EXISTS', deferred_key, workflows_key, timer_key, ...) == 0 then return true end
  expect(deferred_key, 'list')
  expect(workflows_key, 'zset')
  expect(timer_key, 'list')
  return false
end
