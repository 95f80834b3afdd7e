-- gather_checks: checks gathers that are due, within the budget.
-- @include "gather"
-- @include "followers"
local LATER_MS = 60000  -- at least, until the next check of a gather that cannot be deleted yet

local function unlist(key)
  redis.call('ZREM', gathers_key, key)
  redis.call('ZREM', newest_key, key)
end

-- Its unfinished jobs may add or read results, and so may the retry of a failed follow-up, as long as that job exists.
local function is_in_use(plan)
  local _, _, total = missing_listeners(plan)
  budget = budget - total
  for n = 0, total - 1 do
    local status = read(plan.id .. '.' .. whole(n), 'status')[1]
    if status and not is_final(status) then return true end
  end
  local keep_until_ms = tonumber(redis.call('HGET', plan_key(plan.key), 'keep_until_ms')) or 0
  local status = read(follow_up_of(plan), 'status')[1]
  return status and (not is_final(status) or status ~= 'completed' and now < keep_until_ms)
end

local function delete_when_unused(plan)
  check_results(plan)
  if is_in_use(plan) then
    local left_ms = redis.call('PTTL', results_key(plan.key))
    local later_ms = left_ms >= 0 and left_ms + EXPIRES_LATER_MS or math.max(plan.ttl_ms, LATER_MS)
    return check_later(plan.key, now + later_ms)
  end
  unlist(plan.key)
  drop_results(plan)
  if redis.call('HEXISTS', plan_key(plan.key), 'files') == 1 then
    redis.call('HSET', plan_key(plan.key), 'closed', 1)  -- its files first, then the rest (delete_gather.lua)
    redis.call('SADD', closed_key, plan.key)
    return
  end
  redis.call('UNLINK', plan_key(plan.key))
end

-- Checks a gather that still collects. Only checks that are a poll_delay apart count.
local function check_collecting(plan)
  if check_threshold(plan) or plan.status ~= 'collecting' then return end
  if now >= plan.poll_ms then
    plan.polls, plan.poll_ms = plan.polls - 1, now + plan.poll_delay_ms
    if plan.polls <= 0 then return end_gather(plan, 'failed', 'late') end
    redis.call('HSET', plan_key(plan.key), 'polls', plan.polls, 'poll_ms', whole(plan.poll_ms))
  end
  local sooner = now < plan.expires_ms and plan.expires_ms or plan.poll_ms
  check_later(plan.key, math.min(plan.poll_ms, sooner))
end

-- Returns whether more are due.
local function check_gathers()
  for _, key in ipairs(redis.call('ZRANGEBYSCORE', gathers_key, '-inf', now, 'LIMIT', 0, 10)) do
    if budget <= 0 then return true end
    local plan = load_plan(key)
    if not plan then unlist(key)
    elseif plan.status == 'collecting' then check_collecting(plan)
    else delete_when_unused(plan) end
  end
  return redis.call('ZCOUNT', gathers_key, '-inf', now) > 0
end
