-- claim_queues: claim_batch over all queues of one worker, with the wake tokens that follow from it.
-- Reply, flat: call, {lost ids}, {queues to leave out for a while}, alone, {kinds}, {broken}, then 3 fields a job: id,
--   payload, number of its kind from 0 on. A kind: '<queue> <lease> <attempts> <recoveries> <task>', options. Broken
--   are queues with a key of a wrong type, which give nothing: each with its problem, as in an error (types.lua)
-- `alone`: 1 when a job that must run alone waits aside for a child that holds nothing, or is what this one holds.
-- @include "claim_queue"
-- One command tells most calls that nothing was left for later, and that their child never sent a call again. If it
-- did, a call up to that one comes too late: nobody waits for its reply any more, so it claims nothing (resent.lua).
local function prepare(want)
  local there = redis.call('EXISTS', flows_key, resent_key(want.child))
  if there == 0 then return end
  local noted = redis.pcall('GET', resent_key(want.child))
  if noted and not want.resent and tonumber(want.call) <= (tonumber(noted) or -1) then
    want.jobs = 0
  elseif there == 2 or not noted then
    full().advance_some()
  end
end

local function sound_ones(queues, broken)
  local sound = {}
  for _, queue in ipairs(queues) do
    if is_sound(queue) then
      sound[#sound + 1] = queue
    else
      broken[#broken + 1], broken[#broken + 2] = queue, problem_of(queue)
    end
  end
  return sound
end

local function claim_queues(want)
  local left_out, broken = {}, {}
  local queues = sound_ones(want.queues, broken)
  if not (want.resent and full().claimed_before(want)) then
    batch.alone = want.holding == 1 and full().runs_one_alone(want)
    if want.jobs > 0 then prepare(want) end
    for _, queue in ipairs(queues) do
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
  local alone = (batch.waits or batch.alone and batch.size == 0) and 1 or 0
  return { tonumber(want.call), batch.lost, left_out, alone, batch.kinds, broken, unpack(batch.jobs) }
end
