-- aging: the order among priorities of a queue with the option AGING, which is in the field `aging` of its meta in ms:
-- each such period of waiting counts as one step of priority. Jobs stay where they always are, so the option may change
-- at any time. The order within one priority stays the same. Among the next jobs of all priorities, the first to start
-- is the one whose time, plus `aging` for each step of priority that it lacks, is the earliest.
local function aging_of(queue)
  local ms = integer(redis.call('HGET', queue_key(queue, 'meta'), 'aging'))
  return ms and ms > 0 and ms or nil
end

-- The first member of each priority of a ZSET, whose scores begin with a band (place.lua).
local function first_of_bands(key, high)
  local found, from = {}, '-inf'
  repeat
    local name, score = unpack(redis.pcall('ZRANGEBYSCORE', key, from, high, 'WITHSCORES', 'LIMIT', 0, 1))
    if name then
      local band = band_of(score)
      found[#found + 1], from = { name = name, score = score, band = band }, whole((band + 1) * BAND)
    end
  until not name
  return found
end

-- The time since which a job has been queued.
local instants = {}
local function queued_since(id)
  if not id then return now end
  if not instants[id] then
    local enqueued, ready = unpack(read(id, 'enqueued_ms', 'ready_ms'))
    instants[id] = tonumber(ready or nil) or tonumber(enqueued or nil) or 0
  end
  return instants[id]
end
local function aged_instant(id, band, aging) return queued_since(id) + band * aging end

-- The first of some by age, and the time of the second. Each has `id`, the job that it would start, and its `band`.
local function first_by_age(some, aging)
  if not some[2] then return some[1], math.huge end
  local first, earliest, second = nil, math.huge, math.huge
  for _, one in ipairs(some) do
    local instant = aged_instant(one.id, one.band, aging)
    if instant < earliest or instant == earliest and one.band < first.band then
      first, earliest, second = one, instant, earliest
    else
      second = math.min(second, instant)
    end
  end
  return first, second
end
