-- claim_queues: claim_batch over all queues of one worker, with the wake tokens that follow from it.
-- Reply, flat: call, {lost ids}, {queues to leave out for a while}, alone, then 8 fields a job:
--   id, queue, task, payload, lease, attempts, recoveries, options
-- `alone`: 1 when a job that must run alone waits for the child to hold nothing, or is what it holds.
local BANDS = 2 ^ 45

-- Redis keeps a small ZSET as a list, and looks through all of it for each id that comes or goes: with two busy
-- children a sixth of its time. One member of over 64 bytes makes it a tree, which it stays when that is gone.
local MANY, LONG = 32, string.rep('-', 100)
local function note_processing(queue, claimed)
  local key = queue_key(queue, 'processing')
  redis.call('ZADD', key, unpack(claimed))
  if redis.call('ZCARD', key) > MANY and redis.call('OBJECT', 'ENCODING', key) ~= 'skiplist' then
    redis.call('ZADD', key, 0, LONG)
    redis.call('ZREM', key, LONG)
  end
end

local function claim_queue(want, queue)
  promote_due(queue, 100)
  local claimed, floor = {}, tonumber(want.min_priority)
  local highest_score = '(' .. whole((101 - floor) * BANDS)
  local above = '(' .. whole(math.min(100, 101 - floor) * BANDS)
  take_by_priority(want, queue, '-inf', above, claimed)
  if floor <= 0 then
    take_in_order(want, queue, claimed)
    take_by_priority(want, queue, whole(101 * BANDS), highest_score, claimed)
  end
  if #claimed > 0 then note_processing(queue, claimed) end
end

-- A resent call (its reply was lost) gets what it claimed the first time, and still holds.
local function claimed_before(want)
  local mark = want.call .. ':'
  for _, entry in ipairs(redis.call('LRANGE', held_key(want.child), 0, -1)) do
    if string.sub(entry, 1, #mark) == mark then
      local id = string.sub(entry, #mark + 1)
      local f = read(id, 'status', 'child', 'queue', 'task', 'payload', 'lease', 'attempts', 'recoveries', 'options')
      if f[1] == 'processing' and f[2] == want.child then
        local reply, n = batch.reply, #batch.reply
        reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, f[3] or 'default', f[4] or '', f[5] or ''
        reply[n + 5], reply[n + 6] = tonumber(f[6]) or 0, tonumber(f[7]) or 0
        reply[n + 7], reply[n + 8] = tonumber(f[8]) or 0, f[9] or ''
        batch.size = batch.size + 1
      end
    end
  end
  return batch.size > 0
end

-- A job that must run alone is the only one its child holds, until it has ended.
local function runs_one_alone(want)
  if want.holding ~= 1 then return false end
  local id = string.match(redis.call('LINDEX', held_key(want.child), 0), ':(.*)$')
  return (tonumber(read(id, 'recoveries')[1]) or 0) > 0
end

local function claim_queues(want)
  local left_out = {}
  if not (want.resent and claimed_before(want)) then
    batch.alone = runs_one_alone(want)
    if want.jobs > 0 and redis.call('EXISTS', flows_key) == 1 then advance_some() end
    for _, queue in ipairs(want.queues) do
      local paused = redis.call('HEXISTS', queue_key(queue, 'meta'), 'paused') == 1
      local before = batch.size
      if not paused and open(want) then claim_queue(want, queue) end
      if has_work(queue) then
        if not paused then wake(queue) end
        if paused or (open(want) and before == batch.size) then left_out[#left_out + 1] = queue end
      end
    end
    if #batch.entries > 0 then
      redis.call('RPUSH', held_key(want.child), unpack(batch.entries))
      redis.call('ZADD', workers_key, 'GT', whole(now + want.lease_ms), want.child)
    end
  end
  return { tonumber(want.call), batch.lost, left_out, batch.alone and batch.size == 0 and 1 or 0, unpack(batch.reply) }
end
