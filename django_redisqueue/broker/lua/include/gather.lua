-- gather: the results of a gather and its end. A listener's result is counted once, the threshold releases `then` once,
-- and a loss that puts the threshold out of reach fails the gather once.
-- @include "pending_writes"
-- @include "callback"
-- @first_use
-- @include "gather_plan"
-- Listeners without a result, the numbers of their jobs, and the number of all listeners.
local function missing_listeners(plan)
  local has_result, missing, numbers, total = {}, {}, {}, 0
  if has_results(plan) then
    for _, name in ipairs(redis.call('HKEYS', results_key(plan.key))) do has_result[name] = true end
  end
  for name in string.gmatch(plan.listeners, '%S+') do
    if not has_result[name] then missing[#missing + 1], numbers[#numbers + 1] = name, total end
    total = total + 1
  end
  return missing, numbers, total
end

-- While they exist, results count as bytes of finished jobs for FINISHED_MAX_BYTES, in the follow-up's queue: that of
-- `then` until the gather has failed. plan.counted: the bytes counted so far.
local function count_results(plan, by)
  local queue = plan.status == 'failed' and plan.failure_queue or plan.then_queue
  if by == 0 then return end
  local meta = redis.call('TYPE', queue_key(queue, 'meta')).ok
  if meta ~= 'hash' and meta ~= 'none' then return end
  plan.counted = increment(plan_key(plan.key), 'counted', by)
  local writes = pending_writes(queue)
  writes.bytes = writes.bytes + by
end

-- Whether the results exist. Results that have expired or were deleted no longer count.
local function check_results(plan)
  if has_results(plan) then return true end
  count_results(plan, -plan.counted)
  return false
end

local function drop_results(plan)
  if has_results(plan) then redis.call('UNLINK', results_key(plan.key)) end
  check_results(plan)
end

-- The results have no TTL from now until the follow-up has run (follow_up_ended).
local function end_gather(plan, status, reason)
  if plan.status ~= 'collecting' then return end
  local bytes = status == 'failed' and plan.counted or 0  -- move to the queue of the other follow-up
  count_results(plan, -bytes)
  plan.status = status
  count_results(plan, bytes)
  redis.call('HSET', plan_key(plan.key), 'status', status, 'ended_ms', now_text)
  if status == 'failed' then
    redis.call('HSET', plan_key(plan.key), 'reason', reason, 'missing', table.concat(missing_listeners(plan), ' '))
  end
  local which = status == 'released' and 'then' or 'failure'
  local follows = call_back(plan_key(plan.key), which, plan.id .. '.' .. which, plan.key)
  if has_results(plan) then
    if follows then redis.call('PERSIST', results_key(plan.key))
    else redis.call('PEXPIRE', results_key(plan.key), whole(plan.ttl_ms)) end
  end
  check_later(plan.key, now + plan.ttl_ms)
  publish(base .. 'done:' .. plan.id, status)
end

local function follow_up_of(plan) return plan.id .. (plan.status == 'released' and '.then' or '.failure') end

local function store_result(plan, listener, body)
  local key = results_key(plan.key)
  if not check_results(plan) then return end_gather(plan, 'failed', 'expired') end  -- does not start again
  if redis.call('HEXISTS', key, listener) == 1 then return end
  local done = (tonumber(redis.call('HGET', key, 'queryDoneCount')) or 0) + 1
  redis.call('HSET', key, listener, body, 'queryDoneCount', text(done))
  count_results(plan, #body)
  if done >= plan.threshold then end_gather(plan, 'released', '') end
end

-- Fails the gather if the threshold is out of reach. Returns true if the budget of this script does not allow a check;
-- the timer checks later.
local function check_threshold(plan)
  if plan.status ~= 'collecting' then return end
  if not check_results(plan) then return end_gather(plan, 'failed', 'expired') end
  local missing, numbers, total = missing_listeners(plan)
  if budget < #numbers then
    check_later(plan.key, now)
    return true
  end
  budget = budget - #numbers
  local possible = total - #missing
  for _, n in ipairs(numbers) do
    local status = read(plan.id .. '.' .. whole(n), 'status')[1]
    if status and status ~= 'failed' and status ~= 'cancelled' then possible = possible + 1 end
  end
  if possible < plan.threshold then end_gather(plan, 'failed', 'unreachable') end
end

-- The follow-up has run. After a failure, the results are kept for its retry as long as that job is kept
-- (gather_checks.lua); otherwise they expire.
local function follow_up_ended(plan, status)
  if status ~= 'completed' then
    redis.call('HSET', plan_key(plan.key), 'keep_until_ms', whole(now + plan.keep_ms))
  elseif has_results(plan) then
    redis.call('PEXPIRE', results_key(plan.key), whole(plan.ttl_ms))
  end
  check_later(plan.key, now + plan.ttl_ms)
end

local function gather_job_ended(id, status, body)
  local key, listener = unpack(redis.call('HMGET', job_key(id), 'gather', 'listener'))
  local plan = key and load_plan(key, gather_of(id))
  if not plan then return end
  if not listener then return follow_up_ended(plan, status) end
  if status == 'completed' then return store_result(plan, listener, body) end
  check_threshold(plan)
end
