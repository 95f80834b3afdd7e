-- types: law 1: types are checked before the first write, so that no write can fail half-way.
local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    error('WRONGKEY ' .. key .. ' ' .. found .. ' ' .. kind)
  end
end
-- Functions, and no tables, which would have to be made in every run of a script.
local function always_there() return 'queued', 'processing', 'completed', 'meta' end
local function often_missing() return 'priority', 'scheduled', 'retrying', 'waiting', 'failed', 'cancelled', 'wake' end
local function type_of(list)
  if list == 'meta' then return 'hash' end
  if list == 'queued' or list == 'wake' then return 'list' end
  if list == 'completed' or list == 'failed' or list == 'cancelled' then return 'list' end
  return 'zset'
end
local function expect_queue(queue, ...)
  for _, list in ipairs({ ... }) do expect(queue_key(queue, list), type_of(list)) end
end
local expected = {}
local function expect_all(queue)
  if expected[queue] then return end
  expected[queue] = true
  expect_queue(queue, always_there())
  local others = { often_missing() }  -- one look at all of them
  for at, list in ipairs(others) do others[at] = queue_key(queue, list) end
  if redis.call('EXISTS', unpack(others)) > 0 then expect_queue(queue, often_missing()) end
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
