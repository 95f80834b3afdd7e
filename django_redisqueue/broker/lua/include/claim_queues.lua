-- claim_queues: claims up to `request.jobs` jobs for one child: its queues in strict order, within a queue by priority
-- and then first in, first out; and restores the wake tokens that are then needed.
-- Cost: a few commands per queue and two per job, whatever the length of a queue.
-- Reply, flat: call, {lost ids}, {queues to leave out for a while}, alone, {kinds}, {broken}, then 3 fields per job:
--   id, payload, number of its kind (from 0). A kind: '<queue> <lease> <attempts> <recoveries> <task>', options.
--   Broken: pairs of a queue with a key of the wrong type, from which nothing is claimed, and its problem (context.lua)
-- `alone`: 1 if a job that must run alone is set aside for a child that holds nothing, or is held by this child.
-- @include "fast_path/claim"
-- @include "fast_path/slow_path"
-- @include "claim_order"

local function is_due(queue, list) return redis.call('ZCOUNT', queue_key(queue, list), '-inf', now_text) > 0 end

-- Whether all jobs that may start are in the list. Usually one command tells, or none if types.lua has asked.
local function has_only_its_list(queue)
  if is_bare[queue] and not slow_path_built then return true end
  local priority, scheduled = queue_key(queue, 'priority'), queue_key(queue, 'scheduled')
  return redis.call('EXISTS', priority, scheduled, queue_key(queue, 'retrying')) == 0
    or redis.call('EXISTS', priority) == 0 and not is_due(queue, 'scheduled') and not is_due(queue, 'retrying')
end

-- has_lanes: the queue has, or recently had, jobs with lanes; aging: in ms, or nil.
local function claim_queue(request, queue, has_lanes, aging)
  local claimed, lowest = {}, tonumber(request.min_priority)
  if not has_lanes and has_only_its_list(queue) then
    if lowest <= 0 then claim_in_order(request, queue, claimed) end
  else
    slow_path().promote_due(queue, 100)
    claim_set_aside(request, queue, aging, claimed)
    if aging then slow_path().claim_by_age(request, queue, aging, has_lanes, claimed) end
    if has_lanes then
      if has_room(request) then slow_path().claim_keyed(request, queue, claimed) end
      if has_room(request) then slow_path().claim_lanes(request, queue, claimed) end
      slow_path().forget_passes(queue)
    end
    claim_without_lanes(request, queue, request.jobs, claimed)
  end
  if batch.waits then slow_path().set_suspects_aside() end
  if claimed[1] then add_to_skip_list(queue_key(queue, 'processing'), claimed) end
end

-- Most calls know that there is no deferred work and that their child never sent a call again. If it did, any call up
-- to that one is too late: no child waits for its reply, so it claims nothing (slow_claim.lua).
local function prepare(request)
  if request.is_quiet and not slow_path_built then return end
  local present = redis.call('EXISTS', deferred_key, resent_key(request.child))
  if present == 0 then return end
  local noted = redis.pcall('GET', resent_key(request.child))
  if noted and not request.resent and tonumber(request.call) <= (tonumber(noted) or -1) then
    request.jobs = 0
  elseif present == 2 or not noted then
    slow_path().advance_some()
  end
end

local function claim_from(request, queues, left_out)
  batch.alone = request.holding == 1 and slow_path().holds_one_that_runs_alone(request)
  if request.jobs > 0 then prepare(request) end
  for _, queue in ipairs(queues) do
    local paused, has_lanes, aging = unpack(redis.call('HMGET', queue_key(queue, 'meta'), 'paused', 'keyed', 'aging'))
    local before = batch.size
    if not paused and has_room(request) then claim_queue(request, queue, has_lanes, integer(aging)) end
    if has_work(queue) then
      if not paused then wake(queue) end
      if paused or (has_room(request) and before == batch.size) then left_out[#left_out + 1] = queue end
    end
  end
  if #batch.entries > 0 then
    redis.call('RPUSH', processing_key(request.child), unpack(batch.entries))
    redis.call('ZADD', workers_key, 'GT', whole(now + request.lease_ms), request.child)
  end
end

local function claim_queues(request)
  local left_out, broken, queues = {}, {}, {}
  for _, queue in ipairs(request.queues) do
    if is_sound(queue) then
      queues[#queues + 1] = queue
    else
      broken[#broken + 1], broken[#broken + 2] = queue, problem_of(queue)
    end
  end
  if not (request.resent and slow_path().claimed_before(request)) then claim_from(request, queues, left_out) end
  local alone = (batch.waits or batch.alone and batch.size == 0) and 1 or 0
  return { tonumber(request.call), batch.lost, left_out, alone, batch.kinds, broken, unpack(batch.jobs) }
end
