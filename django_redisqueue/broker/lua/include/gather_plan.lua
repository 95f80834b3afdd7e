-- gather_plan: a gather's plan (docs/gather.md): what it waits for and what follows; its results are in a separate
-- hash. `gathers` has every gather until it is deleted, by the time of its next check; `gathers:newest` the newest of
-- them by their starts, for readers; `gathers:closed` those whose files are to be deleted first.
local EXPIRES_LATER_MS = 50  -- than the script computes, so that a check finds the results gone
local gathers_key, newest_key, closed_key = base .. 'gathers', base .. 'gathers:newest', base .. 'gathers:closed'

local function results_key(key) return base .. 'gather:' .. key end
local function plan_key(key) return results_key(key) .. ':plan' end
local function gather_of(id) return string.match(id, '^(gather_[^.]+)%.') end

-- The plan as a table, or nil if it is gone, closed, of another gather (with an id), or its key has the wrong type.
local function load_plan(key, id)
  local plan_id, status, threshold, listeners, ttl_ms, keep_ms, polls, poll_delay_ms, poll_ms, expires_ms, closed,
    counted, then_queue, failure_queue = unpack(redis.pcall('HMGET', plan_key(key), 'id', 'status', 'threshold',
      'listeners', 'ttl_ms', 'keep_ms', 'polls', 'poll_delay_ms', 'poll_ms', 'expires_ms', 'closed', 'counted',
      'then_queue', 'failure_queue'))
  if not plan_id or closed or (id and plan_id ~= id) then return nil end
  return { key = key, id = plan_id, status = status, threshold = tonumber(threshold) or 1, listeners = listeners or '',
    ttl_ms = tonumber(ttl_ms) or 0, keep_ms = tonumber(keep_ms) or 0, polls = tonumber(polls) or 0,
    poll_delay_ms = tonumber(poll_delay_ms) or 0, poll_ms = tonumber(poll_ms) or 0,
    expires_ms = tonumber(expires_ms) or 0, counted = integer(counted) or 0, then_queue = then_queue or 'default',
    failure_queue = failure_queue }
end

local function has_results(plan) return redis.call('TYPE', results_key(plan.key)).ok == 'hash' end

-- Sets the time of a gather's next check. A list of gathers of the wrong type costs no results: only checks wait for
-- its repair.
local function check_later(key, at)
  redis.pcall('ZADD', gathers_key, whole(at), key)
  wake_timer_if_first(gathers_key, key)
end
