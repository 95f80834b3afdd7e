-- followers: jobs outside a job's workflow that wait for it (enqueue_with_conditions.lua), or may still read its
-- result, in a ZSET of that job. The score of a waiting follower determines what happens if the job fails: 0 keeps
-- waiting, for a retry; 1 is skipped; 2 runs without its result; 3 only waited for the end (duplicates.lua). READS: it
-- was notified of a result, which is only in the job's own hash; retention keeps the hash for these readers
-- (deleted_parents.lua). A follower has a field `from:<job>` for each result that it may read.
-- The job has an "f" in `watched`, a follower an "a", so that other jobs have no extra cost.
-- @include "dependants"
local READS = '-1'
local function reader_field(parent) return 'from:' .. parent end

-- Whether a completed job returned something; without fetching a large result.
local function has_result(id)
  local key = job_key(id)
  local size = redis.call('HSTRLEN', key, 'result')
  return size > 0 and (size ~= 4 or redis.call('HGET', key, 'result') ~= 'null')
end

-- Also for a follower that has been cancelled since: a retry will read the result.
local function add_reader(id, parent)
  if not read(id, 'status')[1] then return redis.call('ZREM', followers_key(parent), id) end
  redis.call('HSET', job_key(id), reader_field(parent), '')
  redis.call('ZADD', followers_key(parent), READS, id)
end

-- Notifies up to `budget` followers of a job that has ended with `status`, or was deleted ('gone'). Returns whether
-- that was all. A key of the wrong type has no followers.
local function notify_followers(id, status)
  local key, lowest = followers_key(id), (status == 'completed' or status == 'gone') and 0 or 1
  if redis.call('TYPE', key).ok ~= 'zset' then return true end
  local is_read = status == 'completed' and has_result(id)
  local found = redis.call('ZRANGEBYSCORE', key, lowest, '+inf', 'WITHSCORES', 'LIMIT', 0, math.max(0, budget))
  budget, moved = budget - #found / 2, moved + #found / 2
  for at = 1, #found, 2 do
    local score = tonumber(found[at + 1])
    if is_read and score < 3 then add_reader(found[at], id) else redis.call('ZREM', key, found[at]) end
    local skips = status ~= 'completed' and score < 2 and (status == 'gone' and 'parent_gone' or 'skipped')
    notify(found[at], skips)
  end
  return redis.call('ZCOUNT', key, lowest, '+inf') == 0
end

local function notify_followers_of_end(id, status)
  if status ~= 'completed' and is_past_retry(id) then status = 'gone' end
  return notify_followers(id, status)
end

-- Continues notifying, unless the job has been requeued since.
local function continue_followers(id)
  local status = read(id, 'status')[1]
  return not is_final(status) or notify_followers_of_end(id, status)
end

-- A follower that has completed reads no more. Its parents notice this when they are to be deleted.
local function stop_reading(id)
  local notes = {}
  for parent in string.gmatch(redis.call('HGET', job_key(id), 'after') or '', '%S+') do
    notes[#notes + 1] = reader_field(parent)
  end
  if #notes > 0 then redis.call('HDEL', job_key(id), unpack(notes)) end
end
