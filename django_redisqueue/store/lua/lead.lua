-- lead: takes, keeps or gives up what must exist once in the shard: the leadership (timer, pruning), or
-- another role of that kind (the mirror's bridge).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 who; 5 lease ms, or 0 to give it up; 6 role ('leader', 'bridge')
-- A term that is longer than a new one is from before Redis's clock went back: it is cut, so that a dead
-- leader is followed in time. A child follows another of its own worker at once: it is only there because
-- the other is dead, and may ask before somebody has given up the role for the dead one.
-- Reply: 1 leads now, 2 leads now and there are continuations (see continuation.lua), 0 another does
-- @include "context"
-- @include "continuation"
local who, lease_ms, role = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local until_ms = role .. '_until_ms'
expect(KEYS[1], 'hash')
write_even_when_full()
local leader = redis.call('HMGET', KEYS[1], role, until_ms)
local ends = tonumber(leader[2] or 0)

local function worker_of(child)
  return string.match(child, '^(.+)%.') or child
end

local free = not leader[1] or leader[1] == who or ends < now
if not free and 0 < lease_ms then
  free = worker_of(leader[1]) == worker_of(who)
end
if not free then
  if 0 < lease_ms and now + lease_ms < ends then
    redis.call('HSET', KEYS[1], until_ms, whole(now + lease_ms))
  end
  return 0
end
if lease_ms == 0 then
  redis.call('HDEL', KEYS[1], role, until_ms)
  return 0
end
redis.call('HSET', KEYS[1], role, who, until_ms, whole(now + lease_ms))
return 1 + redis.call('EXISTS', continuations_key)
