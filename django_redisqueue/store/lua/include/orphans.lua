-- orphans: those who wait for a job that goes, which retention keeps as long as it can.
-- @include "followers"
-- Whether somebody waits for this finished job, or for a retry of it.
local function is_waited_for(id)
  local f = read(id, 'then', 'watched')
  return f[1] and flow_of_job(id) or has(f[2], 'f') and redis.call('TYPE', followers_key(id)).ok == 'zset'
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
  return tell_followers(id, 'gone') and redis.call('TYPE', then_key(id)).ok ~= 'list'
end
