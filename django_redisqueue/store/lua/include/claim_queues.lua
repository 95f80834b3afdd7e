-- claim_queues: claim_batch over all queues of one worker, with the wake tokens that follow from it.
-- Reply, flat: call, {lost ids}, {queues to leave out for a while}, alone, then 4 fields a job: id, payload,
--   '<queue> <lease> <attempts> <recoveries> <task>', options
-- `alone`: 1 when a job that must run alone waits for the child to hold nothing, or is what it holds.
-- @include "claim_queue"
-- A resent call (its reply was lost) gets what it claimed the first time, and still holds.
local function claimed_before(want)
  local mark = want.call .. ':'
  for _, entry in ipairs(redis.call('LRANGE', held_key(want.child), 0, -1)) do
    if string.sub(entry, 1, #mark) == mark then
      local id = string.match(entry, '%S+', #mark + 1)
      local f = read(id, 'status', 'child', 'queue', 'task', 'payload', 'lease', 'attempts', 'recoveries', 'options')
      if f[1] == 'processing' and f[2] == want.child then
        add_to_reply(id, f[5] or '', head_of(f[3] or 'default', f[6] or 0, f[7] or 0, f[8], f[4] or ''), f[9] or '')
      end
    end
  end
  return batch.size > 0
end

-- A job that must run alone is the only one its child holds, until it has ended.
local function runs_one_alone(want)
  if want.holding ~= 1 then return false end
  local id = string.match(redis.call('LINDEX', held_key(want.child), 0), ':(%S+)')
  return (tonumber(read(id, 'recoveries')[1]) or 0) > 0
end

local function claim_queues(want)
  local left_out = {}
  if not (want.resent and claimed_before(want)) then
    batch.alone = runs_one_alone(want)
    if want.jobs > 0 and redis.call('EXISTS', flows_key) == 1 then full().advance_some() end
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
