-- gathers: what the end of a gather's job means: a listener's result is counted once, the threshold releases
-- `then` once; a loss that cannot be made good any more fails the gather, once.
-- @include "gather_plan"
-- @include "callback"
-- Listeners without a result, and the numbers of their jobs; how many listeners there are.
local function missing_of(plan)
  local there, missing, numbers, total = {}, {}, {}, 0
  if has_results(plan) then
    for _, name in ipairs(redis.call('HKEYS', results_key(plan.key))) do there[name] = true end
  end
  for name in string.gmatch(plan.listeners, '%S+') do
    if not there[name] then missing[#missing + 1], numbers[#numbers + 1] = name, total end
    total = total + 1
  end
  return missing, numbers, total
end

-- The results stay without a TTL until what follows has run: see follow_ended.
local function end_gather(plan, status, reason)
  if plan.status ~= 'collecting' then return end
  plan.status = status
  redis.call('HSET', plan_key(plan.key), 'status', status, 'ended_ms', now_text)
  if status == 'failed' then
    redis.call('HSET', plan_key(plan.key), 'reason', reason, 'missing', table.concat(missing_of(plan), ' '))
    if reason == 'expired' then redis.call('HDEL', plan_key(plan.key), 'bytes') end
  end
  local which = status == 'released' and 'then' or 'failure'
  local follows = call_back(plan_key(plan.key), which, plan.id .. '.' .. which, plan.key)
  if has_results(plan) then
    if follows then redis.call('PERSIST', results_key(plan.key))
    else redis.call('PEXPIRE', results_key(plan.key), whole(plan.ttl_ms)) end
  end
  look_again(plan.key, now + plan.ttl_ms)
  redis.call('PUBLISH', base .. 'done:' .. plan.id, status)
end

local function follow_up_of(plan) return plan.id .. (plan.status == 'released' and '.then' or '.failure') end

-- Results that are kept for the retry of a follow-up count as that job's for FINISHED_MAX_BYTES, and go with it
-- (forget.lua). by: how many bytes more, or less.
local function count_kept(plan, by)
  local id = follow_up_of(plan)
  local f = read(id, 'status', 'queue')
  local queue = f[2] or 'default'
  if f[1] ~= 'failed' and f[1] ~= 'cancelled' or not is_sound(queue) then return end
  tally(job_key(id), 'bytes', by)
  tally(queue_key(queue, 'meta'), 'finished_bytes', by)
end

local function bytes_of_results(plan) return integer(redis.call('HGET', plan_key(plan.key), 'bytes')) or 0 end

local function keep_result(plan, listener, body)
  local key = results_key(plan.key)
  if not has_results(plan) then return end_gather(plan, 'failed', 'expired') end  -- never made anew by halves
  if redis.call('HEXISTS', key, listener) == 1 then return end
  local done = (tonumber(redis.call('HGET', key, 'queryDoneCount')) or 0) + 1
  redis.call('HSET', key, listener, body, 'queryDoneCount', text(done))
  tally(plan_key(plan.key), 'bytes', #body)
  if plan.status ~= 'collecting' then return count_kept(plan, #body) end
  if done >= plan.threshold then end_gather(plan, 'released', '') end
end

-- Fails the gather if the threshold is out of reach. True when this script may not look at so many jobs any
-- more: then the timer does.
local function check_reach(plan)
  if plan.status ~= 'collecting' then return end
  if not has_results(plan) then return end_gather(plan, 'failed', 'expired') end
  local missing, numbers, total = missing_of(plan)
  if budget < #numbers then
    look_again(plan.key, now)
    return true
  end
  budget = budget - #numbers
  local hopes = total - #missing
  for _, n in ipairs(numbers) do
    local status = read(plan.id .. '.' .. whole(n), 'status')[1]
    if status and status ~= 'failed' and status ~= 'cancelled' then hopes = hopes + 1 end
  end
  if hopes < plan.threshold then end_gather(plan, 'failed', 'unreachable') end
end
