-- dependants: who waits for a job. `waits` of a waiting job counts its parents that are not done; a parent's
-- `then` names its dependants in its workflow (".4" is a sibling; "*" says that they are in a list of their own)
-- until they are told, which happens once. Those outside are its followers.
-- @include "flow_end"
-- @include "gather_ended"
-- One parent of a job is done, or, with `skips`, will never be: that is the reason to cancel it.
local function tell(id, skips)
  local status, waits = unpack(read(id, 'status', 'waits'))
  if not status then return end
  local left = math.max(0, (integer(waits) or 0) - 1)
  local f = status == 'waiting' and (left == 0 or skips) and read_waiting(id)
  if f and not skips and is_sound(f.queue or 'default') then
    f.was_told = true
    return free(id, f)
  end
  redis.call('HSET', job_key(id), 'waits', text(left))
  if f and skips then
    cancel_waiting(id, f, skips, true)
  elseif f then
    leave_for_later('free:' .. id)
  end
end

-- Takes up to `budget` names of a parent's dependants off it; and whether there are more.
local function take_dependants(id, dependants)
  local names = {}
  if dependants == '*' then
    if is_list(then_key(id)) then names = redis.call('LPOP', then_key(id), budget) or {} end
    if redis.call('TYPE', then_key(id)).ok == 'list' then return names, true end
  else
    for name in string.gmatch(dependants, '%S+') do names[#names + 1] = name end
    if #names > budget then
      redis.call('HSET', job_key(id), 'then', table.concat(names, ' ', budget + 1))
      return { unpack(names, 1, budget) }, true
    end
  end
  redis.call('HDEL', job_key(id), 'then')
  return names, false
end

-- Tells up to `budget` of a parent's dependants; true when all are told.
local function tell_dependants(id, dependants, skips)
  if budget <= 0 then return false end
  local names, more = take_dependants(id, dependants)
  budget, moved = budget - #names, moved + #names
  for _, name in ipairs(names) do
    tell(flow_of(id) .. name, skips)
  end
  return not more
end

local function on_failure_of(job)
  return job.skips and 'skip' or redis.call('HGET', job_key(job.id), 'on_fail') or 'fail'
end

-- What the end of a job means for its workflow and for those that wait for it.
local function job_ended(job, status, body)
  local id, letter = job.id, string.byte(job.id, 1)
  if letter == 103 then gather_job_ended(id, status, body) end  -- 'g'
  local flow = letter == 102 and flow_move(id, job.from or 'processing', status)  -- 'f'
  local dependants = job.dependants
  if not flow and not dependants then return end
  local policy = status ~= 'completed' and on_failure_of(job)
  if policy == 'fail' then
    if flow and flow.status ~= 'cancelled' then
      set_flow(flow, 'fatal', flow.fatal + 1)
      if flow.status == 'running' then end_flow(flow, 'failed') end
    end
    return  -- those who wait go on waiting: a retry brings them back
  end
  if not dependants then return end
  if flow and flow.status == 'building' then return leave_for_later('job:' .. id) end  -- they may come yet
  local has_result = status == 'completed' and body ~= 'null'
  if flow and has_result then redis.call('HSET', flow_key(flow.id), result_field(id), '') end
  if not tell_dependants(id, dependants, policy == 'skip' and 'skipped') then
    leave_for_later('job:' .. id)
  end
end
