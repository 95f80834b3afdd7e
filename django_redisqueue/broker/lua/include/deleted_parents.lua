-- deleted_parents: jobs that wait for a job that is about to be deleted, or that may still read its result, for which
-- retention keeps it as long as possible.
-- @include "followers"
local MAX_READERS = 10  -- examined per call and job

local function has_followers(id, watched)
  return has(watched, 'f') and redis.call('TYPE', followers_key(id)).ok == 'zset'
end

-- job: what read_finished() reads of a finished job.
-- Whether jobs wait for it, or for its retry, and are still to be notified.
local function is_waited_for(job)
  return job.dependants and workflow_of_job(job.id)
    or has_followers(job.id, job.watched) and redis.call('ZCOUNT', followers_key(job.id), 0, '+inf') > 0
end

-- Whether a follower may still read its result. Followers that have completed or are gone are removed here, a few at a
-- time, so that no other verb has to do it.
local function has_readers(job)
  if not has_followers(job.id, job.watched) then return false end
  local key = followers_key(job.id)
  for _, reader in ipairs(redis.call('ZRANGEBYSCORE', key, READS, READS, 'LIMIT', 0, MAX_READERS)) do
    local status = read(reader, 'status')[1]
    if status and status ~= 'completed' then return true end
    redis.call('ZREM', key, reader)
  end
  return redis.call('ZCOUNT', key, READS, READS) > 0
end

-- Whether a completed job's result may still be read, also by jobs of its workflow until all of those have completed.
local function is_wanted(job)
  local workflow_id = workflow_id_of(job.id)
  if workflow_id then
    local mark, completed, total = unpack(redis.pcall('HMGET', workflow_key(workflow_id), result_field(job.id),
      'completed', 'total'))
    if mark and (tonumber(completed) or 0) < (tonumber(total) or 0) then return true end
  end
  return has_readers(job)
end

-- Dependants of a workflow that is gone have been notified already.
local function defer_notice_of_deletion(id, dependants)
  if dependants and dependants ~= '*' and is_list(then_key(id)) then
    for name in string.gmatch(dependants, '%S+') do redis.call('RPUSH', then_key(id), name) end
  end
  defer('gone:' .. id)
end

local function notify_of_deletion(id)
  local names = budget > 0 and is_list(then_key(id)) and redis.call('LPOP', then_key(id), budget) or {}
  budget, moved = budget - #names, moved + #names
  for _, name in ipairs(names) do notify(workflow_id_of(id) .. name, 'parent_gone') end
  if not notify_followers(id, 'gone') or redis.call('TYPE', then_key(id)).ok == 'list' then return false end
  if redis.call('TYPE', followers_key(id)).ok == 'zset' then redis.call('UNLINK', followers_key(id)) end  -- its readers
  return true
end
