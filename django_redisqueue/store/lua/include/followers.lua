-- followers: jobs outside a job's workflow that wait for it (admit.lua). They stand in a ZSET of the job's own; the
-- score says what they do when it fails: 0 wait on, for a retry, 1 are skipped, 2 run without its result.
-- A job that has some has an "f" in its `watched`, and the follower an "a", so that others pay nothing.
-- @include "dependants"
local FINAL = { completed = true, failed = true, cancelled = true }
local function has(flags, letter) return flags and string.find(flags, letter, 1, true) ~= nil end

-- A follower gets what a parent returned, also one that was cancelled meanwhile: a retry will want it.
local function give_result(id, parent, result)
  local f = read(id, 'status', 'queue')
  local queue = f[2] or 'default'
  if not f[1] or (FINAL[f[1]] and not is_sound(queue)) then return end
  redis.call('HSET', job_key(id), 'from:' .. parent, result)
  if FINAL[f[1]] then
    redis.call('HINCRBY', job_key(id), 'bytes', #result)
    redis.call('HINCRBY', queue_key(queue, 'meta'), 'finished_bytes', #result)
  end
end

-- Tells up to `budget` of those whom this concerns; true when all are told. status: as which the job has
-- ended, or 'gone' when it was deleted before.
local function tell_followers(id, status, result)
  local key, lowest = followers_key(id), (status == 'completed' or status == 'gone') and 0 or 1
  local found = redis.call('ZRANGEBYSCORE', key, lowest, '+inf', 'WITHSCORES', 'LIMIT', 0, budget)
  budget, moved = budget - #found / 2, moved + #found / 2
  for at = 1, #found, 2 do
    redis.call('ZREM', key, found[at])
    local skips = status ~= 'completed' and found[at + 1] ~= '2' and (status == 'gone' and 'parent_gone' or 'skipped')
    if result then give_result(found[at], id, result) end
    tell(found[at], skips)
  end
  return redis.call('ZCOUNT', key, lowest, '+inf') == 0
end

local function end_for_followers(id, status, body)
  local result = status == 'completed' and body ~= 'null' and body or nil
  if not tell_followers(id, status, result) then leave_for_later('follow:' .. id) end
end

-- Goes on with that; not when the job was sent back meanwhile.
local function follow_on(id)
  local f = read(id, 'status', 'result')
  if not FINAL[f[1]] then return true end
  return tell_followers(id, f[1], f[1] == 'completed' and f[2] ~= 'null' and f[2] or nil)
end

-- A follower has what its parents returned in its own hash until it has completed. Returns the bytes that stay.
local function results_kept(id, status)
  local bytes = 0
  for parent in string.gmatch(redis.call('HGET', job_key(id), 'after') or '', '%S+') do
    if status == 'completed' then
      redis.call('HDEL', job_key(id), 'from:' .. parent)
    else
      bytes = bytes + redis.call('HSTRLEN', job_key(id), 'from:' .. parent)
    end
  end
  return bytes
end

-- Whether somebody waits for this finished job, or for a retry of it.
local function is_waited_for(id)
  local f = read(id, 'then', 'watched')
  return f[1] and flow_of_job(id) or has(f[2], 'f') and redis.call('EXISTS', followers_key(id)) == 1
end

-- A job is about to go that others wait for: they will be told so. Those of a workflow that is gone were.
local function leave_orphans(id, dependants)
  if dependants and dependants ~= '*' then
    for name in string.gmatch(dependants, '%S+') do redis.call('RPUSH', then_key(id), name) end
  end
  leave_for_later('gone:' .. id)
end

local function tell_orphans(id)
  local names = budget > 0 and redis.call('LPOP', then_key(id), budget) or {}
  budget, moved = budget - #names, moved + #names
  for _, name in ipairs(names) do tell(flow_of(id) .. name, 'parent_gone') end
  return tell_followers(id, 'gone') and redis.call('EXISTS', then_key(id)) == 0
end
