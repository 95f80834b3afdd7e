-- reap: returns the jobs of one child that is gone to the head of their queues (at most 100 a call) and,
-- when none are left, forgets the child.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 MAX_RECOVERIES; 6 child, or '' for one whose lease has lapsed;
--      7 '*' when nobody knows what had started (all are blamed), else '='; 8.. ids that had started
--      Naming a child asserts that its process is dead; then its lease is not looked at.
-- Reply: { 0 nothing lapsed, ... } or { -1 not yet: ms to wait } or
--        { 1, child, more left (0/1), then pairs of id and what became of it (see recover.lua) }
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "recover"
local lease_ms, limit, child = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
expect(workers_key, 'zset')
expect(events_key, 'stream')
if child == '' then
  local lapsed = redis.call('ZRANGEBYSCORE', workers_key, '-inf', '(' .. whole(now), 'LIMIT', 0, 1)
  if not lapsed[1] then return { 0 } end
  local known = redis.call('HMGET', KEYS[1], 'run_id', 'steady_ms')
  local same = known[1] and known[1] == string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
  local steady = same and now - tonumber(known[2]) or 0
  if steady < lease_ms then return { -1, lease_ms - steady } end
  child = lapsed[1]
end
expect(held_key(child), 'list')

write_even_when_full()
local started, known_started = {}, 0
for at = 8, #ARGV do
  started[ARGV[at]] = true
  known_started = known_started + 1
end
local entries = redis.call('LRANGE', held_key(child), 0, 99)
local more = redis.call('LLEN', held_key(child)) > #entries
local reply = { 1, child, more and 1 or 0 }
local blame_all = ARGV[7] == '*'
local alone = blame_all and #entries == 1 and not more or known_started == 1
for at = #entries, 1, -1 do
  local id = string.match(entries[at], ':(.*)$')
  local outcome = recover(child, id, blame_all or started[id] or false, alone, limit)
  if outcome then
    reply[#reply + 1] = id
    reply[#reply + 1] = outcome
  end
end
flush()
redis.call('LTRIM', held_key(child), #entries, -1)
if not more then redis.call('ZREM', workers_key, child) end
return reply
