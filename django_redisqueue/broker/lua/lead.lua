-- lead: acquires, renews or gives up a role that exists once per shard: the leadership (timer, pruning), or another
-- role of that kind (the mirror's bridge).
-- KEYS[1] meta
-- ARGV 1-3 context; 4 who; 5 lease ms, or 0 to give it up; 6 role ('leader', 'bridge')
-- Reply: 1 leads now, 2 leads now and there are continuations (continuation.lua), 0 another child leads
-- A term longer than a new one dates from before Redis's clock went back; it is cut, so that a dead leader is replaced
-- in time. A child replaces another child of its own worker at once: it exists only because the other is dead, and may
-- ask before the supervisor has given up the role for the dead child.
-- @include "context"
-- @include "continuation"
local who, lease_ms, role = ARGV[4], tonumber(ARGV[5]), ARGV[6]
local until_ms = role .. '_until_ms'
expect(KEYS[1], 'hash')
write_even_when_full()
local leader, ends_text = unpack(redis.call('HMGET', KEYS[1], role, until_ms))
local ends = tonumber(ends_text or 0)

local function worker_of(child)
  return string.match(child, '^(.+)%.') or child
end

local is_free = not leader or leader == who or ends < now
if not is_free and 0 < lease_ms then
  is_free = worker_of(leader) == worker_of(who)
end
if not is_free then
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
