-- types: law 1: types are checked before the first write, so that no write can fail half-way.
local function expect(key, kind)
  local found = redis.call('TYPE', key).ok
  if found ~= kind and found ~= 'none' then
    error('WRONGKEY ' .. key .. ' ' .. found .. ' ' .. kind)
  end
end
local QUEUE_TYPES = {
  queued = 'list', priority = 'zset', scheduled = 'zset', retrying = 'zset', processing = 'zset',
  waiting = 'zset', completed = 'list', failed = 'list', cancelled = 'list', wake = 'list', meta = 'hash',
}
local OFTEN_MISSING = { 'priority', 'scheduled', 'retrying', 'waiting', 'failed', 'cancelled', 'wake' }
local function expect_queue(queue, ...)
  for _, list in ipairs({ ... }) do expect(queue_key(queue, list), QUEUE_TYPES[list]) end
end
local expected = {}
local function expect_all(queue)
  if expected[queue] then return end
  expected[queue] = true
  expect_queue(queue, 'queued', 'processing', 'completed', 'meta')
  local others = {}  -- of which most queues have none: one look at all of them
  for at, list in ipairs(OFTEN_MISSING) do others[at] = queue_key(queue, list) end
  if redis.call('EXISTS', unpack(others)) > 0 then expect_queue(queue, unpack(OFTEN_MISSING)) end
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
