-- slots: what starts give up, what ends give back.
-- Slots are written by write_slots(), once a claim.
local new_slots = {}
local function take(limit, ids)
  if not limit.is_rate then
    for _, id in ipairs(ids) do new_slots[#new_slots + 1], new_slots[#new_slots + 2] = '0', limit.key .. ' ' .. id end
    limit.used = limit.used + #ids
  elseif limit.interval and #ids > 0 then
    limit.tat = math.max(limit.tat, now * MS) + #ids * limit.interval
    save_tat(limit, now_text)
  end
end

-- Counts one more start in a lane's limits if all have room; rates are for claim_lane.lua.
local function take_room(lane)
  if lane.chunk then return false end
  local keys = lane.limits
  for at = 1, #keys do
    local limit = limit_of(keys[at])
    if limit.is_rate or limit.used >= limit.max then return false end
  end
  for at = 1, #keys do
    local limit = limit_of(keys[at])
    limit.used = limit.used + 1
  end
  return true
end
local function hold_slots(lane, id)
  local keys, count = lane.limits, #new_slots
  for at = 1, #keys do new_slots[count + 2 * at - 1], new_slots[count + 2 * at] = '0', keys[at] .. ' ' .. id end
end
local function forget_limits(lane)
  for _, key in ipairs(lane.limits) do limits_by_key[key] = nil end
end

local function write_slots()
  if #new_slots == 0 then return end
  add_to_skip_list(slots_key, new_slots)
  forget_slots()
  new_slots = {}
end

-- Frees the slots of jobs that are no longer processing: pairs of an id and the name of its lane.
local function free_slots(jobs)
  local members, keys = {}, {}
  for at = 1, #jobs, 2 do
    for _, key in ipairs(lane_named(jobs[at + 1]).limits) do
      if string.byte(key) == 99 then  -- 'c'
        members[#members + 1], keys[#keys + 1], limits_by_key[key] = key .. ' ' .. jobs[at], key, nil
      end
    end
  end
  if not members[1] then return end
  redis.pcall('ZREM', slots_key, unpack(members))
  forget_slots()
  if someone_waits() then call_waiting_lanes(keys) end
end

-- A job that has not started gives its tokens back, if it took the last ones: older ones could let too many start.
local function give_back_tokens(text, started_ms)
  for _, key in ipairs(lane_of(text).limits) do
    local limit = limit_of(key)
    if limit.interval and limit.last_ms == started_ms then
      limit.tat = limit.tat - limit.interval
      save_tat(limit, started_ms)
      due_at(key, instant_of(limit, 0))
    end
  end
end

-- No job of these rates starts before `due`.
local function hold_rates(text, due)
  for _, key in ipairs(lane_of(text).limits) do
    local limit = limit_of(key)
    if limit.interval then
      limit.tat = math.max(limit.tat, due * MS + limit.tolerance)
      save_tat(limit, '0')
    end
  end
end

-- A concurrency limit that has no room for one more job besides those that run or stand in this lane, and how many
-- stand there; nil when all have.
local function crowded_limit(queue, text)
  local lane = lane_of(text)
  local waiting = redis.pcall('ZCARD', lane_key(queue, lane.name))
  for _, key in ipairs(lane.limits) do
    local limit = limit_of(key)
    if limit.max and limit.used + waiting >= limit.max then return limit, waiting end
  end
end

-- Of those the oldest: of the running ones that are not to stop already, or the first of the lane. nil when enough
-- are to stop.
local function oldest_of(queue, text, limit, waiting)
  local oldest, oldest_ms, staying = nil, math.huge, 0
  local slots = redis.pcall('ZRANGEBYLEX', slots_key, '[' .. limit.key .. ' ', '(' .. limit.key .. '!', 'LIMIT', 0, 100)
  for _, slot in ipairs(slots) do
    local id = string.match(slot, ' (.*)$')
    local started_ms, cancel_ms = unpack(read(id, 'started_ms', 'cancel_ms'))
    if not cancel_ms then
      staying = staying + 1
      if (tonumber(started_ms) or 0) < oldest_ms then oldest, oldest_ms = id, tonumber(started_ms) or 0 end
    end
  end
  if staying + waiting < limit.max then return nil end
  return oldest or head_of(queue, lane_of(text)) or nil
end
