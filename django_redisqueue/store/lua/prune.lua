-- prune: lets go of finished jobs, oldest first, id and hash together (ZCARD never counts ghosts).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 completed, failed or cancelled; 6 how many to keep; 7 keep for ms;
--      8 resend window ms; 9 cap in bytes for the queue's finished jobs; 10 how many to look at (1-100);
--      11 whether a mirror reads the stream (0/1)
-- Reply: { let go, of them for the byte cap alone, more to do (0/1) }
-- A job stays while a repeated enqueue could still arrive (the resend window) and until the mirror has
-- read its last event, whatever the caps say, except the byte cap, and then it is counted. One that others
-- wait for goes behind the newest; only the byte cap lets it go, unless they are being told.
-- @include "context"
-- @include "emit"
-- @include "conclude"
-- @include "forget"
-- @include "put_off"
local queue, status, keep, ttl_ms = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local resend_ms, max_bytes, limit = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])
local has_mirror = ARGV[11] == '1'
assert(FINAL[status], 'only finished jobs are pruned')
expect_queue(queue, status, 'meta')
write_even_when_full()

-- What finished before this instant is behind the mirror's cursor (see trim.lua): the first half of an
-- entry's id is Redis's clock, up to a script's length behind what the script called now. Unless the clock
-- was set back; then ids say nothing until it has caught up.
local LONGEST_SCRIPT_MS = 1000
local function mirrored_until()
  if not has_mirror then return math.huge end
  local last = redis.call('XREVRANGE', events_key, '+', '-', 'COUNT', 1)[1]
  local position = redis.call('HGET', KEYS[1], 'mirror_position') or '0-0'
  if not last or last[1] == position then return math.huge end
  if tonumber(string.match(last[1], '^%d+')) > now then return 0 end
  return tonumber(string.match(position, '^%d+')) - LONGEST_SCRIPT_MS
end

local list, meta = queue_key(queue, status), queue_key(queue, 'meta')
local length = redis.call('ZCARD', list)
local bytes = integer(redis.call('HGET', meta, 'finished_bytes')) or 0
local oldest = redis.call('ZRANGE', list, 0, limit - 1, 'WITHSCORES')  -- by when they ended
local gone, forced, kept, mirrored_ms = {}, 0, {}, mirrored_until()
for at = 1, #oldest, 2 do
  local id, finished_ms = oldest[at], math.floor(tonumber(oldest[at + 1]))
  local age = now - finished_ms
  local over = bytes + gather(queue).bytes > max_bytes
  local due = (age > ttl_ms or length - #gone > keep) and age > resend_ms and finished_ms < mirrored_ms
  if not over and not due then break end
  if (not over or status == 'completed') and is_waited_for(id) then
    kept[#kept + 1] = id
  else
    if not due then forced = forced + 1 end
    forget(queue, status, id, 0)
    gone[#gone + 1] = id
  end
end
if #gone > 0 then redis.call('ZREM', list, unpack(gone)) end
put_off(list, kept)
if forced > 0 then tally(meta, 'forced_total', forced) end
flush()
local seen = #gone + #kept
return { #gone, forced, #gone > 0 and seen == #oldest / 2 and seen == limit and 1 or 0 }
