-- pauses: shares and limit keys whose jobs no claim takes from a queue. They are in its hash `pauses`, a share as
-- s:<share>, with the time of the pause and who paused them ("<ms> <name>"). Claims park their lanes as they park those
-- of a limit without room, with the key p:s:<share> or p:<limit key>.
local has_pauses = {}  -- by queue; most have none

-- The pause that refuses a lane, or nil. It asks for this lane's only, because a queue may have any number of pauses.
local function pause_of(queue, lane)
  local key = queue_key(queue, 'pauses')
  if has_pauses[queue] == nil then has_pauses[queue] = redis.call('EXISTS', key) == 1 end
  if not has_pauses[queue] then return nil end
  local found = redis.pcall('HMGET', key, 's:' .. lane.share, unpack(lane.limits))
  if found[1] then return { key = 'p:s:' .. lane.share } end
  for n, limit_key in ipairs(lane.limits) do
    if found[n + 1] then return { key = 'p:' .. limit_key } end
  end
end
