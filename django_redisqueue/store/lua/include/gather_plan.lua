-- gather_plan: where gathers stand (docs/gather.md). A gather's plan says what it waits for and what follows;
-- beside it the results meet in a hash. `gathers` has every gather until it is forgotten, by the instant at
-- which it is looked at next; `gathers:closed` those whose files are to be deleted first.
local gathers_key, closed_key = base .. 'gathers', base .. 'gathers:closed'

local function results_key(key) return base .. 'gather:' .. key end
local function plan_key(key) return results_key(key) .. ':plan' end
local function gather_of(id) return string.match(id, '^(gather_[^.]+)%.') end

-- The plan as a table, or nil when it is gone, over, or (with an id) another gather's. One whose keys are not
-- what they should be counts as gone, as a workflow's do.
local function load_plan(key, id)
  local listed = redis.call('TYPE', gathers_key).ok
  local f = redis.pcall('HMGET', plan_key(key), 'id', 'status', 'threshold', 'listeners', 'ttl_ms', 'keep_ms',
    'polls', 'poll_delay_ms', 'poll_ms', 'expires_ms', 'closed')
  if f.err or not f[1] or f[11] or (id and f[1] ~= id) or (listed ~= 'zset' and listed ~= 'none') then
    return nil
  end
  return { key = key, id = f[1], status = f[2], threshold = tonumber(f[3]) or 1, listeners = f[4] or '',
    ttl_ms = tonumber(f[5]) or 0, keep_ms = tonumber(f[6]) or 0, polls = tonumber(f[7]) or 0,
    poll_delay_ms = tonumber(f[8]) or 0, poll_ms = tonumber(f[9]) or 0, expires_ms = tonumber(f[10]) or 0 }
end

local function has_results(plan) return redis.call('TYPE', results_key(plan.key)).ok == 'hash' end

-- When a gather is looked at next; wakes the timer if it is now the first.
local function look_again(key, at)
  redis.call('ZADD', gathers_key, whole(at), key)
  if redis.call('ZRANGE', gathers_key, 0, 0)[1] == key and redis.call('EXISTS', timer_key) == 0 then
    redis.call('LPUSH', timer_key, '1')
  end
end
