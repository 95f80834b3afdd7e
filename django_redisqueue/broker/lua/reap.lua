-- reap: returns the jobs of a dead child to the head of their queues (at most 100 per call) and, when none are left,
-- removes the child.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 MAX_RECOVERIES; 6 child, or '' for one whose lease has expired;
--      7 '*' if it is unknown which jobs had started (all are blamed), else '='; 8 number of ids that stay with the
--      child because their outcomes are still to be reported; then those ids; then ids that had started
-- Reply: { 0 } no lease has expired, or { -1, ms to wait } too early to tell, or
--        { 1, child, more left (0 none, 1 yes, 2 only jobs of queues with a key of the wrong type, 3 unknown: the
--          child's processing list has the wrong type), then pairs of id and outcome (recover.lua) }
-- Naming a child asserts that its process is dead; its lease is then ignored.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "recover"
-- @include "steady"
local lease_ms, limit, child = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6]
expect(workers_key, 'zset')
if child == '' then
  local lapsed = redis.call('ZRANGEBYSCORE', workers_key, '-inf', '(' .. whole(now), 'LIMIT', 0, 1)
  if not lapsed[1] then return { 0 } end
  local wait_ms = reaping_delay_ms(lease_ms)
  if wait_ms > 0 then return { -1, wait_ms } end
  child = lapsed[1]
end
local length = length_of(processing_key(child), 'list')
if not length then  -- recover_orphans finds its jobs
  redis.call('ZREM', workers_key, child)
  return { 1, child, 3 }
end

-- From the end of the list, because each job goes ahead of the previous one. Never all but one, because that one would
-- then seem to have been alone.
local entries = redis.call('LRANGE', processing_key(child), length == 101 and -99 or -100, -1)
local more = length > #entries
-- Jobs of broken queues stay with the child, which gets another lease, so that other children are reaped.
local ids, stay, is_to_stay = {}, {}, {}
local first_started = 9 + tonumber(ARGV[8])
for at = 9, first_started - 1 do is_to_stay[ARGV[at]] = true end
for _, entry in ipairs(entries) do
  local id = string.match(entry, ':(%S+)') or entry
  local status, queue = unpack(read(id, 'status', 'queue'))
  if is_to_stay[id] or status and not is_sound(queue or 'default') then
    table.insert(stay, 1, entry)
  else
    ids[#ids + 1] = id
  end
end
local is_stuck = #stay > 0 and (#ids == 0 or not more)

write_even_when_full()
local started, known_started = {}, 0
for at = first_started, #ARGV do
  started[ARGV[at]] = true
  known_started = known_started + 1
end
local reply = { 1, child, is_stuck and 2 or more and 1 or 0 }
local blame_all = ARGV[7] == '*'
local alone = blame_all and #ids == 1 and #stay == 0 and not more or known_started == 1
for at = #ids, 1, -1 do
  local id = ids[at]
  local outcome = recover(child, id, blame_all or started[id] or false, alone, limit)
  if outcome then
    reply[#reply + 1] = id
    reply[#reply + 1] = outcome
  end
end
redis.call('LTRIM', processing_key(child), 0, -1 - #entries)
if #stay > 0 then redis.call('LPUSH', processing_key(child), unpack(stay)) end
if is_stuck then
  redis.call('ZADD', workers_key, whole(now + lease_ms), child)
elseif not more then
  redis.call('ZREM', workers_key, child)
  redis.call('DEL', resent_key(child))
end
flush()
return reply
