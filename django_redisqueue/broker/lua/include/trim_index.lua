-- trim_index: a LIST of "<id of an entry> <events ever written before it>", oldest first, one for every STEP events.
-- The stream's cap is in events, but XTRIM counts entries, which have up to 100 events: the index tells at which entry
-- to cut. The counter `events` in meta counts all events that were ever written.
-- @include "trim_step"
local MAX_POPS = 100  -- per call

local function parse_trim_entry(text)
  local entry, before = string.match(text or '', '^(%S+) (%d+)$')
  return entry, tonumber(before)
end

-- Adds an entry at which the counter has passed a multiple of STEP, and then trims the stream to its cap: one step at a
-- time, or more after the cap was lowered, as far as Redis goes in one call.
local function update_trim_index(entry, before, total)
  if before == 0 then redis.call('DEL', trim_index_key) end  -- the counter was lost; the index uses the old one
  if math.floor(before / STEP) == math.floor(total / STEP) then return end
  redis.call('RPUSH', trim_index_key, entry .. ' ' .. whole(before))
  local reach = total - events_cap
  for _ = 1, MAX_POPS do  -- drops an item while the next one is also far enough back
    local _, next_before = parse_trim_entry(redis.call('LINDEX', trim_index_key, 1))
    if not next_before or next_before > reach then break end
    redis.call('LPOP', trim_index_key)
  end
  local cut, events = parse_trim_entry(redis.call('LINDEX', trim_index_key, 0))
  if events and events <= reach then redis.call('XTRIM', events_key, 'MINID', '~', cut) end
end
