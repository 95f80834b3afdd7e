-- orphans: those who wait for a job that goes, or want its result, for whom retention keeps it as long as it can.
-- @include "followers"
local LOOKS = 10  -- at readers, a call and job

local function has_followers(id, watched)
  return has(watched, 'f') and redis.call('TYPE', followers_key(id)).ok == 'zset'
end

-- Whether somebody waits for this finished job, or for a retry of it, and is to be told.
local function is_waited_for(id)
  local f = read(id, 'then', 'watched')
  return f[1] and flow_of_job(id) or has_followers(id, f[2]) and redis.call('ZCOUNT', followers_key(id), 0, '+inf') > 0
end

-- Whether a follower may still read its result. Those that have completed, or were let go, are struck out here, a few
-- at a time: so no other verb has to think of it.
local function has_readers(id)
  if not has_followers(id, read(id, 'watched')[1]) then return false end
  local key = followers_key(id)
  for _, reader in ipairs(redis.call('ZRANGEBYSCORE', key, READS, READS, 'LIMIT', 0, LOOKS)) do
    local status = read(reader, 'status')[1]
    if status and status ~= 'completed' then return true end
    redis.call('ZREM', key, reader)
  end
  return redis.call('ZCOUNT', key, READS, READS) > 0
end

-- Whether a completed job's result may yet be read: also by jobs of its workflow, until all of those have completed.
local function is_wanted(id)
  local flow = flow_of_job(id)
  if flow and flow.completed < flow.total and redis.call('HEXISTS', flow_key(flow.id), result_field(id)) == 1 then
    return true
  end
  return has_readers(id)
end

-- A job is about to go that others wait for: they will be told so. Those of a workflow that is gone were.
local function leave_orphans(id, dependants)
  if dependants and dependants ~= '*' and is_list(then_key(id)) then
    for name in string.gmatch(dependants, '%S+') do redis.call('RPUSH', then_key(id), name) end
  end
  leave_for_later('gone:' .. id)
end

local function tell_orphans(id)
  local names = budget > 0 and is_list(then_key(id)) and redis.call('LPOP', then_key(id), budget) or {}
  budget, moved = budget - #names, moved + #names
  for _, name in ipairs(names) do tell(flow_of(id) .. name, 'parent_gone') end
  if not tell_followers(id, 'gone') or redis.call('TYPE', then_key(id)).ok == 'list' then return false end
  if redis.call('TYPE', followers_key(id)).ok == 'zset' then redis.call('UNLINK', followers_key(id)) end  -- its readers
  return true
end
