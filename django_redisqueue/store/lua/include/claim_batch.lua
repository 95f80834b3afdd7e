-- claim_batch: takes up to `want.jobs` queued ids for one child, from its queues in strict order, within
-- a queue by priority and then first in, first out. Returns the reply of claim.lua.
-- A job that has taken a worker down before (recoveries > 0) is taken alone: last, or not at all.
-- Cost: a few commands a queue and six a job, whatever the length of the queue.
local EXAMINED = 100
local batch = { reply = {}, entries = {}, lost = {}, size = 0, examined = 0, alone = false }

local function hand_over(want, queue, id, f)
  local lease, seq, attempts = (tonumber(f[4]) or 0) + 1, (tonumber(f[8]) or 1) + 1, f[5] or '0'
  redis.call('HSET', job_key(id), 'status', 'processing', 'child', want.child, 'lease', lease,
    'started_ms', now, 'seq', seq)
  emit(id, 'processing', queue, f[2], want.child, attempts + 1, seq, f[9])
  batch.entries[#batch.entries + 1] = want.call .. ':' .. id
  batch.size = batch.size + 1
  local reply, n = batch.reply, #batch.reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, queue, f[2], f[3]
  reply[n + 5], reply[n + 6], reply[n + 7], reply[n + 8] = lease, attempts, f[6] or '0', f[7] or ''
end

-- Looks at ids in order; returns how many of them leave the queue (claimed, stale or without a hash).
local function examine(want, queue, ids, claimed)
  for position, id in ipairs(ids) do
    local f = redis.call('HMGET', job_key(id), 'status', 'task', 'payload', 'lease', 'attempts',
      'recoveries', 'options', 'seq', 'audit')
    batch.examined = batch.examined + 1
    if f[1] == 'queued' and f[2] and f[3] then
      if f[6] and f[6] ~= '0' then
        if batch.size > 0 or want.holding > 0 then
          batch.alone = true
          return position - 1
        end
        batch.alone = true
      end
      hand_over(want, queue, id, f)
      claimed[#claimed + 1] = now
      claimed[#claimed + 1] = id
      if batch.alone then return position end
    elseif not f[1] then
      batch.lost[#batch.lost + 1] = id
    end
  end
  return #ids
end

local function open(want)
  return batch.size < want.jobs and batch.examined < EXAMINED and not batch.alone
end

local function take_by_priority(want, queue, low, high, claimed)
  local key = queue_key(queue, 'priority')
  while open(want) do
    local ids = redis.call('ZRANGEBYSCORE', key, low, high, 'LIMIT', 0, want.jobs - batch.size)
    if #ids == 0 then return end
    local leave = examine(want, queue, ids, claimed)
    if leave > 0 then redis.call('ZREM', key, unpack(ids, 1, leave)) end
  end
end

local function take_in_order(want, queue, claimed)
  local key = queue_key(queue, 'queued')
  while open(want) do
    local tail = redis.call('LRANGE', key, batch.size - want.jobs, -1)
    if #tail == 0 then return end
    local ids = {}
    for position = #tail, 1, -1 do ids[#ids + 1] = tail[position] end
    local leave = examine(want, queue, ids, claimed)
    redis.call('LTRIM', key, 0, -1 - leave)
  end
end
