-- numbers: those of limits and shares, in the hash `limits`: by <kind>:<limit> and s:<share> as the newest job gave
-- them, and by '=' and a limit key or s:<share> where one was set for this alone, which overrides the job's. `set`
-- counts the latter, and `weights` tells that shares have weights; most applications have neither.
local common_numbers, marks = {}, {}
local function read_number(field)
  local found = redis.pcall('HGET', limits_key, field)
  return type(found) == 'string' and found or nil
end
local function common_number(field)
  if common_numbers[field] == nil then common_numbers[field] = read_number(field) or false end
  return common_numbers[field] or nil
end
local function has_mark(name)
  if marks[name] == nil then marks[name] = read_number(name) ~= nil end
  return marks[name]
end
local function own_number(key)
  return has_mark('set') and read_number('=' .. key) or nil
end

-- A share without a weight has 1, which is not stored: an application may have any number of shares.
local function note_weight(share, weight)
  if weight == '1' and not has_mark('weights') then return end
  local field = 's:' .. share
  if (common_number(field) or '1') == weight then return end
  if weight == '1' then
    redis.call('HDEL', limits_key, field)
  else
    redis.call('HSET', limits_key, field, weight, 'weights', 1)
    marks.weights = true
  end
  common_numbers[field] = weight
end

-- The newest job's numbers now apply. Lanes that wait for a limit whose number has changed are called later
-- (promote.lua).
local function note_numbers(text)
  local share, weight = string.match(text, '^[^| ]*'), '1'
  for field, number in string.gmatch(text, ' (%S-)=(%S*)') do
    local is_weight = string.sub(field, 1, 2) == 's:'
    local before = is_weight and number or common_number(field)
    if is_weight then share, weight = string.sub(field, 3), number end
    if before ~= number then
      redis.call('HSET', limits_key, field, number)
      common_numbers[field] = number
      if before then
        redis.call('HSET', changed_limits_key, field, '[' .. field .. ':')
        wake_timer()
      end
    end
  end
  if share ~= '' then note_weight(share, weight) end
end

local strides = {}
local function stride_of(share)
  if not strides[share] then
    local field = 's:' .. share
    local weight = tonumber(own_number(field) or has_mark('weights') and common_number(field)) or 1
    strides[share] = STRIDE / math.max(1, math.min(STRIDE, weight))
  end
  return strides[share]
end
