-- followers: jobs outside a job's workflow that wait for it (admit.lua), or may yet read its result. They stand in a
-- ZSET of the job's own. The score of one that waits says what it does when the job fails: 0 waits on, for a retry,
-- 1 is skipped, 2 runs without its result. READS is one that was told of a result: that stands in the job's own hash
-- alone, however many read it, and retention keeps it for them (orphans.lua). What they may read, they note:
-- `from:<job>`.
-- A job that has some has an "f" in its `watched`, and the follower an "a", so that others pay nothing.
-- @include "dependants"
local FINAL = { completed = true, failed = true, cancelled = true }
local READS = '-1'
local function has(flags, letter) return flags and string.find(flags, letter, 1, true) ~= nil end
local function note_of(parent) return 'from:' .. parent end

-- Whether a completed job returned something; a large result is not fetched for that.
local function has_result(id)
  local key = job_key(id)
  local size = redis.call('HSTRLEN', key, 'result')
  return size > 0 and (size ~= 4 or redis.call('HGET', key, 'result') ~= 'null')
end

-- Of one that was cancelled meanwhile, too: a retry will want the result.
local function note_reader(id, parent)
  if not read(id, 'status')[1] then return redis.call('ZREM', followers_key(parent), id) end
  redis.call('HSET', job_key(id), note_of(parent), '')
  redis.call('ZADD', followers_key(parent), READS, id)
end

-- Tells up to `budget` of those whom this concerns; true when all are told. status: as which the job has
-- ended, or 'gone' when it was deleted before. A key that is none of ours (any more) names nobody.
local function tell_followers(id, status)
  local key, lowest = followers_key(id), (status == 'completed' or status == 'gone') and 0 or 1
  if redis.call('TYPE', key).ok ~= 'zset' then return true end
  local is_read = status == 'completed' and has_result(id)
  local found = redis.call('ZRANGEBYSCORE', key, lowest, '+inf', 'WITHSCORES', 'LIMIT', 0, math.max(0, budget))
  budget, moved = budget - #found / 2, moved + #found / 2
  for at = 1, #found, 2 do
    if is_read then note_reader(found[at], id) else redis.call('ZREM', key, found[at]) end
    local skips = status ~= 'completed' and found[at + 1] ~= '2' and (status == 'gone' and 'parent_gone' or 'skipped')
    tell(found[at], skips)
  end
  return redis.call('ZCOUNT', key, lowest, '+inf') == 0
end

local function tell_of_end(id, status)
  if status ~= 'completed' and is_past_retry(id) then status = 'gone' end
  return tell_followers(id, status)
end

local function end_for_followers(id, status)
  if not tell_of_end(id, status) then leave_for_later('follow:' .. id) end
end

-- Goes on with that; not when the job was sent back meanwhile.
local function follow_on(id)
  local status = read(id, 'status')[1]
  return not FINAL[status] or tell_of_end(id, status)
end

-- A follower that has completed reads nothing any more. Its parents find that out when their turn to go comes.
local function read_no_more(id)
  local notes = {}
  for parent in string.gmatch(redis.call('HGET', job_key(id), 'after') or '', '%S+') do
    notes[#notes + 1] = note_of(parent)
  end
  if #notes > 0 then redis.call('HDEL', job_key(id), unpack(notes)) end
end
