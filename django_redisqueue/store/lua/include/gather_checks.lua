-- gather_checks: looks at gathers whose time has come, as far as the budget goes. True when there are more.
-- @include "gather_ended"
-- @include "followers"
local LATER_MS = 60000  -- until the next look at one that cannot be forgotten yet, at least

-- Jobs that run or wait may add to the results or ask for them, and so may the retry by hand of one that
-- followed and failed, as long as it is there.
local function is_needed(plan)
  local _, _, total = missing_of(plan)
  budget = budget - total
  for n = 0, total - 1 do
    local status = read(plan.id .. '.' .. whole(n), 'status')[1]
    if status and not FINAL[status] then return true end
  end
  local keep_until_ms = tonumber(redis.call('HGET', plan_key(plan.key), 'keep_until_ms')) or 0
  local status = read(follow_up_of(plan), 'status')[1]
  return status and (not FINAL[status] or status ~= 'completed' and now < keep_until_ms)
end

local function forget_gather(plan)
  if is_needed(plan) then return look_again(plan.key, now + math.max(plan.ttl_ms, LATER_MS)) end
  redis.call('ZREM', gathers_key, plan.key)
  count_kept(plan, -bytes_of_results(plan))
  if redis.call('HEXISTS', plan_key(plan.key), 'files') == 1 then
    redis.call('HSET', plan_key(plan.key), 'closed', 1)  -- its files first, then the rest (discard.lua)
    redis.call('SADD', closed_key, plan.key)
    return
  end
  if has_results(plan) then redis.call('UNLINK', results_key(plan.key)) end
  redis.call('UNLINK', plan_key(plan.key))
end

-- A check of one that still collects. Only those a poll_delay apart count.
local function poll(plan)
  if check_reach(plan) or plan.status ~= 'collecting' then return end
  if now >= plan.poll_ms then
    plan.polls, plan.poll_ms = plan.polls - 1, now + plan.poll_delay_ms
    if plan.polls <= 0 then return end_gather(plan, 'failed', 'late') end
    redis.call('HSET', plan_key(plan.key), 'polls', plan.polls, 'poll_ms', whole(plan.poll_ms))
  end
  local sooner = now < plan.expires_ms and plan.expires_ms or plan.poll_ms
  look_again(plan.key, math.min(plan.poll_ms, sooner))
end

local function check_gathers()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', gathers_key, '-inf', now, 'LIMIT', 0, 10)) do
    if budget <= 0 then return true end
    local plan = load_plan(key)
    if not plan then redis.call('ZREM', gathers_key, key)
    elseif plan.status == 'collecting' then poll(plan)
    else forget_gather(plan) end
  end
  return redis.call('ZCOUNT', gathers_key, '-inf', now) > 0
end
