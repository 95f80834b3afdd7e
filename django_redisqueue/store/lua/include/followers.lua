-- followers: jobs outside a job's workflow that wait for it (admit.lua). They stand in a ZSET of the job's own; the
-- score says what they do when it fails: 0 wait on, for a retry, 1 are skipped, 2 run without its result.
-- A job that has some has an "f" in its `watched`, and the follower an "a", so that others pay nothing.
-- @include "dependants"
local FINAL = { completed = true, failed = true, cancelled = true }
local RESULTS = 1000000  -- bytes of results that a script copies to followers
local room = RESULTS
local function has(flags, letter) return flags and string.find(flags, letter, 1, true) ~= nil end

-- A follower gets what a parent returned, also one that was cancelled meanwhile: a retry will want it.
local function give_result(id, parent, result)
  local f = read(id, 'status', 'queue')
  local queue = f[2] or 'default'
  if not f[1] or (FINAL[f[1]] and not is_sound(queue)) then return end
  redis.call('HSET', job_key(id), 'from:' .. parent, result)
  if FINAL[f[1]] and type(redis.pcall('HINCRBY', job_key(id), 'bytes', #result)) == 'number' then
    tally(queue_key(queue, 'meta'), 'finished_bytes', #result)
  end
end

-- To how many followers a result of so many bytes may go now: one at least, however large, when it is the first.
local function copies(bytes)
  return math.min(budget, math.max(room == RESULTS and 1 or 0, math.floor(room / math.max(1, bytes))))
end

-- Tells up to `budget` of those whom this concerns; true when all are told. status: as which the job has
-- ended, or 'gone' when it was deleted before. A key that is none of ours (any more) names nobody.
local function tell_followers(id, status, result)
  local key, lowest = followers_key(id), (status == 'completed' or status == 'gone') and 0 or 1
  if redis.call('TYPE', key).ok ~= 'zset' then return true end
  local most = result and copies(#result) or budget
  local found = redis.call('ZRANGEBYSCORE', key, lowest, '+inf', 'WITHSCORES', 'LIMIT', 0, most)
  budget, moved = budget - #found / 2, moved + #found / 2
  if result then room = room - #result * #found / 2 end
  for at = 1, #found, 2 do
    redis.call('ZREM', key, found[at])
    local skips = status ~= 'completed' and found[at + 1] ~= '2' and (status == 'gone' and 'parent_gone' or 'skipped')
    if result then give_result(found[at], id, result) end
    tell(found[at], skips)
  end
  return redis.call('ZCOUNT', key, lowest, '+inf') == 0
end

local function tell_of_end(id, status, body)
  local result = status == 'completed' and body ~= 'null' and body or nil
  if status ~= 'completed' and is_past_retry(id) then status = 'gone' end
  return tell_followers(id, status, result)
end

local function end_for_followers(id, status, body)
  if not tell_of_end(id, status, body) then leave_for_later('follow:' .. id) end
end

-- Goes on with that; not when the job was sent back meanwhile.
local function follow_on(id)
  local status = read(id, 'status')[1]
  if not FINAL[status] then return true end
  if status == 'completed' and copies(redis.call('HSTRLEN', job_key(id), 'result')) == 0 then return false end
  return tell_of_end(id, status, read(id, 'result')[1])
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
