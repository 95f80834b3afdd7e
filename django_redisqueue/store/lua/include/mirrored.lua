-- mirrored: what finished before this instant is behind the mirror's cursor (see trim.lua): the first half of an
-- entry's id is Redis's clock, up to a script's length behind what the script called now. Unless the clock was set
-- back; then ids say nothing until it has caught up.
local LONGEST_SCRIPT_MS = 1000
local function mirrored_until(has_mirror)
  if not has_mirror then return math.huge end
  local last = redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]
  local position = redis.call('HGET', KEYS[1], 'mirror_position') or '0-0'
  if not last or last[1] == position then return math.huge end
  if tonumber(string.match(last[1], '^%d+')) > now then return 0 end
  return tonumber(string.match(position, '^%d+')) - LONGEST_SCRIPT_MS
end
