-- slots: what starts take and what ends give back.
-- Slots are written by write_slots(), once per claim.
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

-- Starts that a claim plans (claim_keyed.lua): no tables are created for their lanes and limits, which cost more than
-- the rest. room_left: how many more jobs concurrency limits allow to start.
local room_left = {}
local function room_for_plan(key)
  return string.byte(key) == 99 and (tonumber(number_of(key)) or math.huge) - used_of(key) or 0  -- 'c'
end

-- Takes the slots of a job, the next of the plan. Returns false if a limit of its lane has no room, or is a rate or a
-- chunk: the plan then ends before it.
local function plan_start(name, id)
  local find, sub, first, count = string.find, string.sub, #new_slots, #new_slots
  local bar = find(name, '|', 1, true)
  while bar do
    local next_bar = find(name, '|', bar + 1, true)
    local key = sub(name, bar + 1, next_bar and next_bar - 1 or -1)
    local left = room_left[key] or room_for_plan(key)
    if not (left >= 1) then
      for at = first + 1, count do new_slots[at] = nil end
      return false
    end
    new_slots[count + 1], new_slots[count + 2], room_left[key] = '0', key .. ' ' .. id, left - 1
    bar, count = next_bar, count + 2
  end
  return true
end
-- Limits that were read before do not count what a plan takes.
local function forget_plan() new_slots, room_left, limits_by_key = {}, {}, {} end

local function write_slots()
  if #new_slots == 0 then return end
  add_to_skip_list(slots_key, new_slots)
  forget_slots()
  new_slots = {}
end

-- Frees the slots of jobs that are no longer processing: pairs of an id and the name of its lane.
local function free_slots(jobs)
  local find, sub, byte, members, keys, count = string.find, string.sub, string.byte, {}, {}, 0
  for at = 1, #jobs, 2 do
    local id, name = jobs[at], jobs[at + 1]
    local bar = find(name, '|', 1, true)
    while bar do
      local next_bar = find(name, '|', bar + 1, true)
      if byte(name, bar + 1) == 99 then  -- 'c'
        local key = sub(name, bar + 1, next_bar and next_bar - 1 or -1)
        count = count + 1
        members[count], keys[count], limits_by_key[key] = key .. ' ' .. id, key, nil
      end
      bar = next_bar
    end
  end
  if not members[1] then return end
  redis.pcall('ZREM', slots_key, unpack(members))
  forget_slots()
  if someone_waits() then call_waiting_lanes(keys) end
end

-- A job that has not started returns its tokens if it took the last ones: older ones could let too many jobs start.
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

-- A concurrency limit that has no room for one more job besides those that run or are in this lane, and how many are in
-- the lane; nil if all limits have room.
local function crowded_limit(queue, text)
  local lane = lane_of(text)
  local waiting = redis.pcall('ZCARD', lane_key(queue, lane.name))
  for _, key in ipairs(lane.limits) do
    local limit = limit_of(key)
    if limit.max and limit.used + waiting >= limit.max then return limit, waiting end
  end
end

-- The oldest of those: of the running ones (among 100, by id) that have not been told to stop, or the first of the
-- lane. nil if enough have been told to stop.
local function oldest_of(queue, text, limit, waiting)
  local oldest, oldest_ms, staying = nil, math.huge, limit.used
  local slots = redis.pcall('ZRANGEBYLEX', slots_key, '[' .. limit.key .. ' ', '(' .. limit.key .. '!', 'LIMIT', 0, 100)
  for _, slot in ipairs(slots) do
    local id = string.match(slot, ' (.*)$')
    local started_ms, cancel_ms = unpack(read(id, 'started_ms', 'cancel_ms'))
    started_ms = tonumber(started_ms) or 0
    if cancel_ms then staying = staying - 1
    elseif started_ms < oldest_ms then oldest, oldest_ms = id, started_ms end
  end
  if staying + waiting < limit.max then return nil end
  return oldest or head_of(queue, lane_of(text)) or nil
end
