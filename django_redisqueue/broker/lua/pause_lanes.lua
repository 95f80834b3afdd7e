-- pause_lanes: stops claims of the jobs of one share or limit key of a queue, or allows them again.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 s:<share> or a limit key; 6 '1' to pause, '0' to resume; 7 who did it, or ''
-- Reply: { 1 changed or 0 no change, 1 if there are more lanes to resume: call again }
-- Resumes at most 100 lanes per call; audit_lanes.lua finds those left by a caller that died.
-- @include "context"
-- @include "place"
-- @include "lanes"
-- @include "pause_history"
local queue, key = ARGV[4], ARGV[5]
local pauses_key = queue_key(queue, 'pauses')
expect_all(queue)
expect(pauses_key, 'hash')
expect_pause_history(queue)
expect(base .. 'limits:passes', 'hash')
expect(base .. 'chunks:waiting', 'zset')
write_even_when_full()
local is_pause = ARGV[6] == '1'
local changed = is_pause and redis.call('HSETNX', pauses_key, key, now_text .. ' ' .. ARGV[7])
  or redis.call('HDEL', pauses_key, key)
if changed == 1 then remember_pause(queue, ARGV[6], key, ARGV[7]) end
if is_pause then return { changed, 0 } end
return { changed, lanes().call_lanes_in(queue, { key = 'p:' .. key }, 100) and 1 or 0 }
