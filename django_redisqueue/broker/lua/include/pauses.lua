-- pauses: shares and limit keys whose jobs no claim takes from a queue. They are in its hash `pauses`, a share as
-- s:<share>, with the time of the pause and who paused them ("<ms> <name>"). Claims park their lanes as they park those
-- of a limit without room, with the key p:s:<share> or p:<limit key>.
local pauses_by_queue = {}
local function pauses_of(queue)
  if not pauses_by_queue[queue] then
    local found, pauses = redis.pcall('HGETALL', queue_key(queue, 'pauses')), {}
    for at = 1, #found, 2 do pauses[found[at]] = true end
    pauses_by_queue[queue] = pauses
  end
  return pauses_by_queue[queue]
end

-- The pause that refuses a lane, or nil.
local function pause_of(queue, lane)
  local pauses = pauses_of(queue)
  if not next(pauses) then return nil end
  if pauses['s:' .. lane.share] then return { key = 'p:s:' .. lane.share } end
  for _, key in ipairs(lane.limits) do
    if pauses[key] then return { key = 'p:' .. key } end
  end
end
