-- lane_audit: compares a page of slots, or of a queue's queued jobs with their lanes, with what it should be.
-- @include "aging"
-- @include "lane_names"
-- @include "numbers"
-- @include "limits"
-- @include "parking"
-- @include "pauses"
local repaired = 0
local function repair(is_broken)
  if is_broken then repaired = repaired + 1 end
  return is_broken
end
local function has_limit(name, key) return string.find(name .. '|', '|' .. key .. '|', 1, true) ~= nil end

-- All parts return the position after what they have read ('' at the end), and how much more may be read. Lanes that
-- wait for a freed slot are called when the round gets to them.
local function audit_slots(position, left)
  local slots = redis.call('ZRANGEBYLEX', slots_key, position == '' and '-' or '(' .. position, '+', 'LIMIT', 0, left)
  for _, slot in ipairs(slots) do
    local key, id = string.match(slot, '^(%S+) (.+)$')
    local status, text = unpack(read(id or '', 'status', 'lane'))
    if repair(status ~= 'processing' or not has_limit(string.match(text or '', '^%S*'), key)) then
      redis.call('ZREM', slots_key, slot)
    end
  end
  return slots[#slots], left - #slots
end

-- Rates whose buckets are full again leave the list of those that are not.
local function forget_full_rates(position, left)
  local from = string.find(position, '^r:') and '(' .. position or '-'
  local keys = redis.call('ZRANGEBYLEX', rates_key, from, '+', 'LIMIT', 0, left)
  for _, key in ipairs(keys) do
    if redis.call('EXISTS', tat_key({ key = key })) == 0 then redis.call('ZREM', rates_key, key) end
  end
  return keys[#keys], left - #keys
end

-- A parked lane waits for one of its limits, which will call it, or it is paused.
local function audit_parked(queue, lane, key, score)
  local pause = pause_of(queue, lane)
  local belongs = has_limit(lane.name, key) or pause and pause.key == key
  if repair(not belongs or not tonumber(redis.pcall('ZSCORE', parked_key(queue, key), lane.name))) then
    unpark(queue, lane, key)
    make_ready(queue, lane, score)
    return wake(queue)
  end
  if repair(tonumber(redis.pcall('ZSCORE', ready_key(queue, lane.share), lane.name))) then
    redis.call('ZREM', ready_key(queue, lane.share), lane.name)
    refresh_share(queue, lane.share)
  end
  repair(redis.pcall('ZADD', waiting_key(key), 0, key .. ' ' .. queue) == 1)
  local kind = string.sub(key, 1, 2)
  if kind == 'p:' then return end
  if repair(kind ~= 'c:' and not redis.call('ZSCORE', due_limits_key, key)) then return due_at(key, now) end
  if kind ~= 'k:' then call_lanes(limit_of(key), 1) end
end

local function audit_lane(queue, lane)
  local _, score = head_of(queue, lane)
  if not score then return end  -- its key has the wrong type
  local key = redis.call('HGET', queue_key(queue, 'parked'), lane.name)
  if key then return audit_parked(queue, lane, key, score) end
  for limit_key in string.gmatch(lane.name, '|([^|]+)') do
    local is_parked = tonumber(redis.pcall('ZSCORE', parked_key(queue, limit_key), lane.name))
    if repair(is_parked) then unpark(queue, lane, limit_key) end
  end
  local known = tonumber(redis.pcall('ZSCORE', ready_key(queue, lane.share), lane.name))
  if repair(known ~= score or not redis.call('ZSCORE', queue_key(queue, 'shares'), lane.share)) then
    make_ready(queue, lane, score)
    wake(queue)
  end
end

local function audit_keyed(queue, position, left)
  local from = position == '' and '-inf' or '(' .. position
  local found = redis.call('ZRANGEBYSCORE', queue_key(queue, 'keyed'), from, '+inf', 'WITHSCORES', 'LIMIT', 0, left)
  if not has_lanes(queue) then return '', left end
  if repair(redis.call('HSETNX', queue_key(queue, 'meta'), 'keyed', 1) == 1) then wake(queue) end
  local some, seen = {}, {}
  for at = 1, #found, 2 do
    local id, score = found[at], found[at + 1]
    local status, text = unpack(read(id, 'status', 'lane'))
    if repair(status and status ~= 'queued') then
      redis.call('ZREM', queue_key(queue, 'keyed'), id)
    elseif text then
      local lane = lane_of(text)
      repair(redis.pcall('ZADD', lane_key(queue, lane.name), score, id) == 1)
      if not seen[lane] then seen[lane], some[#some + 1] = true, lane end
    end
  end
  for _, lane in ipairs(some) do audit_lane(queue, lane) end
  return #found < 2 * left and '' or found[#found], left - #found / 2
end
