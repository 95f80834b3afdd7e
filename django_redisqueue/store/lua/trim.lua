-- trim: tells where the mirror's cursor stands, and lets go of entries of the stream behind it. The cursor's
-- own entry stays (if it is missing later, something was lost), and so do the last ones, for live readers.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 the cursor before; 5 the cursor now; 6 entries read in between; 7 how many stay at least
-- Reply: entries let go (0: nothing is left to do)
-- `mirror_read` counts the entries up to the cursor. It is exact when the cursor is the last entry; from there
-- on it is carried forward, never too high: a repeated call adds nothing, and when it can not be known (an
-- unexpected cursor, or the cap may have trimmed) nothing goes until the mirror has read to the end again.
-- It goes in whole nodes of the stream, at most 2,000 entries a call.
-- @include "context"
local before, position, entries, keep = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
assert(string.match(position, '^%d+%-%d+$'), 'position is not the id of an entry')
expect(KEYS[1], 'hash')
expect(events_key, 'stream')
write_even_when_full()

local known = redis.call('HMGET', KEYS[1], 'mirror_position', 'mirror_read')
local length, read_so_far = redis.call('XLEN', events_key), tonumber(known[2])
local last = redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]
if last and last[1] == position then
  read_so_far = length
elseif known[1] == before and length < tonumber(events_cap) then
  read_so_far = read_so_far and read_so_far + entries
elseif known[1] ~= position or length >= tonumber(events_cap) then
  read_so_far = nil
end

local gone = 0
if read_so_far then
  local stay = math.max(keep, length - read_so_far + 1)
  if length > stay then gone = redis.call('XTRIM', events_key, 'MAXLEN', '~', whole(stay), 'LIMIT', 2000) end
end
redis.call('HSET', KEYS[1], 'mirror_position', position)
if read_so_far then
  redis.call('HSET', KEYS[1], 'mirror_read', whole(read_so_far - gone))
else
  redis.call('HDEL', KEYS[1], 'mirror_read')
end
return gone
