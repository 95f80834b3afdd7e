-- limits: what a lane's limits allow. Their numbers (numbers.lua), where '' or nothing means no limit:
--   concurrency: the number of jobs     rate: <jobs>/<window us>/<burst>
-- `slots` has '<limit key> <job id>' for each processing job, all scores 0. A rate has one number: the time at which
-- its bucket is full again (GCRA). A job may start if now >= tat - (burst - 1) * interval; each start moves tat by an
-- interval of window / (jobs - burst + 1), so no window, wherever it begins, has more than `jobs` starts.
-- `limits:rates` lists the rates that have such a number, and for a while those whose number has expired
-- (lane_audit.lua). A queue's `parked:<limit key>` has its lanes that wait for a limit, by priority and by a pass as in
-- lane_names.lua; its `parked` says which limit a lane waits for. `limits:waiting` has '<limit key> <queue>' for each
-- such set, all scores 0; `limits:due` has the rates with parked lanes by the ms at which they allow again.
local function tat_key(limit) return base .. 'limit:' .. limit.key .. ':tat' end
local rates_key = base .. 'limits:rates'
local MS = 1000

-- For a call that meets many limits: all slots counted by limit, once this costs less than asking for each, and how
-- many slots there are. Code that writes slots clears both.
local counts, slot_count, asked = nil, nil, 0
local function forget_slots() counts, slot_count = nil, nil end
local function are_few_slots()
  if asked == 0 then return false end
  slot_count = slot_count or redis.pcall('ZCARD', slots_key)
  return type(slot_count) == 'number' and slot_count <= 4 * asked
end
local function count_slots()
  counts = {}
  for _, slot in ipairs(redis.pcall('ZRANGE', slots_key, 0, -1)) do
    local key = string.match(slot, '^(%S+) ')
    if key then counts[key] = (counts[key] or 0) + 1 end
  end
end

-- How many jobs hold a concurrency limit.
local function used_of(key)
  if not counts and are_few_slots() then count_slots() end
  if counts then return counts[key] or 0 end
  asked = asked + 1
  local used = redis.pcall('ZLEXCOUNT', slots_key, '[' .. key .. ' ', '(' .. key .. '!')
  return type(used) == 'number' and used or math.huge  -- of the wrong type: nothing starts
end

local function load_rate(limit, number)
  local jobs, window, burst = string.match(number or '', '^(%d+)/(%d+)/(%d+)$')
  if not jobs then return end
  -- One ms more, because starts are known to the ms.
  limit.interval = math.ceil((window + MS) / (jobs - burst + 1))
  limit.tolerance = (burst - 1) * limit.interval
  local tat, last_ms = string.match(redis.pcall('GET', tat_key(limit)) or '', '^(%d+) (%d+)$')
  limit.tat, limit.last_ms = tonumber(tat) or 0, last_ms
end

local function number_of(key)
  local colon = string.find(key, ':', 3, true)
  return own_number(key) or common_number(colon and string.sub(key, 1, colon - 1) or key)
end

local limits_by_key = {}
local function limit_of(key)
  local limit = limits_by_key[key]
  if not limit then
    local kind, number = string.byte(key), number_of(key)  -- 'r', 'k'
    limit = { key = key, is_rate = kind == 114, is_chunk = kind == 107, max = nil, used = nil }  -- all in one piece
    if limit.is_rate then
      load_rate(limit, number)
    else
      limit.max, limit.used = tonumber(number) or math.huge, used_of(key)
    end
    limits_by_key[key] = limit
  end
  return limit
end

-- How many jobs may start now.
local function room_of(limit)
  if not limit.is_rate then return limit.max - limit.used end
  if not limit.interval then return math.huge end
  local from = math.max(limit.tat, now * MS)
  return math.floor((now * MS + limit.tolerance - from) / limit.interval) + 1
end

local function save_tat(limit, last_ms)
  limit.last_ms = last_ms
  local ttl_ms = math.max(1, math.ceil(limit.tat / MS) - now)
  redis.call('SET', tat_key(limit), whole(limit.tat) .. ' ' .. last_ms, 'PX', whole(ttl_ms))
  redis.pcall('ZADD', rates_key, 0, limit.key)
end

-- The time in ms at which a rate allows the start that follows `ahead` others.
local function instant_of(limit, ahead)
  local from = math.max(limit.tat, now * MS) + ahead * limit.interval
  return math.ceil((from - limit.tolerance) / MS)
end
