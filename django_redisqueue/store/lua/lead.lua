-- lead: takes, keeps or gives up the shard's leadership, which is what must exist once (timer, pruning).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 who; 5 lease ms, or 0 to give it up
-- Reply: 1 leads now, 0 another does
-- @include "context"
local who, lease_ms = ARGV[4], tonumber(ARGV[5])
expect(KEYS[1], 'hash')
write_even_when_full()
local leader = redis.call('HMGET', KEYS[1], 'leader', 'leader_until_ms')
local free = not leader[1] or leader[1] == who or tonumber(leader[2] or 0) < now
if not free then return 0 end
if lease_ms == 0 then
  redis.call('HDEL', KEYS[1], 'leader', 'leader_until_ms')
  return 0
end
redis.call('HSET', KEYS[1], 'leader', who, 'leader_until_ms', whole(now + lease_ms))
return 1
