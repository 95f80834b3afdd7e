-- job_audit: the parts of an audit of one queue: its queued jobs with their lanes (lane_audit.lua), those that are
-- processing, and those of its lanes. A page by rank may skip what moves meanwhile; the next round sees that.
-- @include "lane_audit"
-- A job that is processing holds the slots of its limits.
local function audit_processing(queue, position, left)
  local from = tonumber(position) or 0
  local ids = redis.call('ZRANGE', queue_key(queue, 'processing'), from, from + left - 1)
  for _, id in ipairs(ids) do
    local status, text = unpack(read(id, 'status', 'lane'))
    if status == 'processing' then
      for key in string.gmatch(string.match(text or '', '^%S*'), '|(c:[^|]+)') do
        mend(redis.call('ZADD', slots_key, 0, key .. ' ' .. id) == 1)
      end
    end
  end
  return #ids < left and '' or from + #ids, left - #ids
end

-- The queued jobs of a lane are in `keyed`. Returns how many were read.
local function audit_members(queue, name, from, most)
  local found = redis.pcall('ZRANGE', lane_key(queue, name), from, from + most - 1, 'WITHSCORES')
  for at = 1, #found, 2 do
    local status, text = unpack(read(found[at], 'status', 'lane'))
    if status == 'queued' and string.match(text or '', '^%S*') == name then
      mend(redis.call('ZADD', queue_key(queue, 'keyed'), 'NX', found[at + 1], found[at]) == 1)
    end
  end
  return #found / 2
end

-- Position: the ranks of the share, of its lane and of the job.
local function audit_ready(queue, position, left)
  local share_at, lane_at, job_at = string.match(position, '^(%d+)/(%d+)/(%d+)$')
  share_at, lane_at, job_at = tonumber(share_at) or 0, tonumber(lane_at) or 0, tonumber(job_at) or 0
  while left > 0 do
    local share = redis.call('ZRANGE', queue_key(queue, 'shares'), share_at, share_at)[1]
    if not share then return '', left end
    local name = redis.pcall('ZRANGE', ready_key(queue, share), lane_at, lane_at)[1]
    local count = name and audit_members(queue, name, job_at, left) or 0
    if not name then
      share_at, lane_at, job_at = share_at + 1, 0, 0
    elseif count < left then
      lane_at, job_at = lane_at + 1, 0
    else
      job_at = job_at + count
    end
    left = left - math.max(1, count)
  end
  return share_at .. '/' .. lane_at .. '/' .. job_at, left
end

-- Of a parked lane only the first jobs; the others are seen when it is ready.
local function audit_parked_lanes(queue, position, left)
  local cursor, lanes_here = unpack(redis.call('HSCAN', queue_key(queue, 'parked'), position == '' and '0' or position))
  local most = math.max(1, math.floor(2 * left / math.max(1, #lanes_here)))
  for at = 1, #lanes_here, 2 do audit_members(queue, lanes_here[at], 0, most) end
  return cursor == '0' and '' or cursor, left - #lanes_here / 2
end

local PARTS = { audit_keyed, audit_processing, audit_ready, audit_parked_lanes }
local function audit_queue(queue, position, left)
  local part, inner = string.match(position, '^(%d+):(.*)$')
  part, inner = tonumber(part) or 1, inner or ''
  while PARTS[part] and left > 0 do
    inner, left = PARTS[part](queue, inner, left)
    if inner == '' then part = part + 1 end
  end
  if not PARTS[part] and left > 0 then return '', left end
  return part .. ':' .. inner, left
end
