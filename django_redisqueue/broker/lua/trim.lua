-- trim: stores the position of the mirror's cursor, and trims the stream behind it. The cursor's own entry stays (if it
-- is later missing, something was lost), and so do the last events, for live readers.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 the id of the cursor's entry; 5 the fewest events to keep
-- Reply: entries removed (0: nothing is left to do)
-- It trims to an entry of the trim index, in whole nodes of the stream, at most 2,000 entries per call.
-- @include "context"
-- @include "trim_index"
local position, keep = ARGV[4], tonumber(ARGV[5])
assert(string.match(position, '^%d+%-%d+$'), 'position is not the id of an entry')
expect(KEYS[1], 'hash')
expect(events_key, 'stream')
expect(trim_index_key, 'list')
write_even_when_full()

local function is_before(one, other)
  local ms, number = string.match(one, '^(%d+)%-(%d+)$')
  local other_ms, other_number = string.match(other, '^(%d+)%-(%d+)$')
  if ms ~= other_ms then return tonumber(ms) < tonumber(other_ms) end
  return tonumber(number) < tonumber(other_number)
end

-- The newest entry of the trim index with at least `keep` events after it. It is near the end of the index, because
-- STEP is at least a hundredth of the cap.
local function entry_to_keep()
  local reach = (tonumber(redis.call('HGET', KEYS[1], 'events')) or 0) - keep
  local last = redis.call('LRANGE', trim_index_key, -200, -1)
  for at = #last, 1, -1 do
    local entry, before = parse_trim_entry(last[at])
    if before and before <= reach then return entry end
  end
end

redis.call('HSET', KEYS[1], 'mirror_position', position)
local kept = entry_to_keep()
if not kept then return 0 end
return redis.call('XTRIM', events_key, 'MINID', '~', is_before(kept, position) and kept or position, 'LIMIT', 2000)
