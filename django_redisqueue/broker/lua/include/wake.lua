-- wake: leaves a token for an idle worker, unless one is already there.
local awake = {}  -- no script takes a token, so once per queue is enough
local function wake(queue)
  if awake[queue] then return end
  awake[queue] = true
  local key = queue_key(queue, 'wake')
  if redis.call('EXISTS', key) == 0 then redis.call('LPUSH', key, '1') end
end

local function has_work(queue)
  return redis.call('EXISTS', queue_key(queue, 'queued'), queue_key(queue, 'priority'), queue_key(queue, 'shares')) > 0
end
