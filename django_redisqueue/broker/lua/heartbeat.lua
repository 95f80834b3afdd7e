-- heartbeat: renews the leases of all children of one supervisor, and the terms of sleeping leaders among them, in one
-- call per supervisor.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 lease ms; 5 number of children; 6 number of queues; 7 the worker, or ''; 8 its report;
--      9 for how many ms the report is kept; 10 number of roles; then the children; then the queues that they serve;
--      then for each role that a child has or wants (lead.lua) its name, the child, the ms of its term, and 1 while the
--      child leads and sleeps, else 0; then id, child, lease of each job that they run (0-100 jobs)
-- Reply: { 1 if run_id changed or heartbeats were interrupted, else 0, number of expired leases anywhere,
--          {ids whose lease is lost: another child holds them, or none}, {ids with a pending cancel}, steady_ms,
--          the last order to the worker (order_worker.lua), or '', {roles that their children must ask for themselves},
--          a text that changes with every transition of a job, and when continuations come or go (continuation.lua) }
-- Law 5: since `steady_ms` heartbeats have reached this very Redis without a gap (steady.lua). Renewing is
-- unconditional: a child whose jobs were taken over holds only old lease numbers, so its new lease does no harm. If
-- Redis's clock went back, leases of dead children would last that much longer, so each is cut to a new one's length.
-- @include "context"
-- @include "fast_path/implied_fields"
-- @include "steady"
-- @include "wake"
local lease_ms, children, queues, roles = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[10])
expect(KEYS[1], 'hash')
expect(workers_key, 'zset')
write_even_when_full()

local last = tonumber(redis.call('HGET', KEYS[1], 'beat_ms'))
if last and now < last then
  local until_ms = whole(now + lease_ms)
  local late = redis.call('ZRANGEBYSCORE', workers_key, '(' .. until_ms, '+inf', 'LIMIT', 0, 1000)
  for _, child in ipairs(late) do redis.call('ZADD', workers_key, until_ms, child) end
end
local steady, reached = since_gaps(lease_ms)
redis.call('HSET', KEYS[1], 'run_id', run_id(), 'beat_ms', now)
if not steady then redis.call('HSET', KEYS[1], 'steady_ms', now) end
if not reached then redis.call('HSET', KEYS[1], 'reached_ms', now) end

local lease_end, roles_at = whole(now + lease_ms), 11 + children + queues
local jobs_at = roles_at + 4 * roles
for at = 11, 10 + children do redis.call('ZADD', workers_key, lease_end, ARGV[at]) end
-- A machine that vanishes takes wake tokens with it, because Redis gives them to its last blocking pops. Keys of
-- another type must not stop the heartbeats.
for at = 11 + children, roles_at - 1 do
  redis.pcall('ZADD', base .. 'serving', lease_end, ARGV[at])
  if has_work(ARGV[at]) and not redis.pcall('HGET', queue_key(ARGV[at], 'meta'), 'paused') then wake(ARGV[at]) end
end
local order = ''
if ARGV[7] ~= '' then
  redis.call('SET', base .. 'worker:' .. ARGV[7], ARGV[8], 'PX', ARGV[9])
  order = redis.pcall('GET', base .. 'worker:' .. ARGV[7] .. ':order')
end

-- Renews the term of a child that sleeps. Returns whether the child must ask: no child leads, or another than it
-- believes, or its term is longer than a new one, which lead.lua cuts.
local function must_ask(role, child, term_ms, sleeps)
  local leader, ends_text = unpack(redis.call('HMGET', KEYS[1], role, role .. '_until_ms'))
  if sleeps and leader == child then
    redis.call('HSET', KEYS[1], role .. '_until_ms', whole(now + term_ms))
    return false
  end
  local ends = tonumber(ends_text or 0)
  return sleeps or not leader or ends < now or now + term_ms < ends
end
local to_ask = {}
for at = roles_at, jobs_at - 1, 4 do
  local role, child, term_ms, sleeps = unpack(ARGV, at, at + 3)
  if must_ask(role, child, tonumber(term_ms), sleeps == '1') then to_ask[#to_ask + 1] = role end
end

local lost, flagged = {}, {}
for at = jobs_at, #ARGV, 3 do
  local child, lease, cancel_ms = unpack(read(ARGV[at], 'child', 'lease', 'cancel_ms'))
  if child ~= ARGV[at + 1] or lease_of('processing', lease) ~= ARGV[at + 2] then
    lost[#lost + 1] = ARGV[at]
  elseif cancel_ms then
    flagged[#flagged + 1] = ARGV[at]
  end
end
local lapsed = redis.call('ZCOUNT', workers_key, '-inf', '(' .. whole(now))
local steady_text, events, unaudited = unpack(redis.call('HMGET', KEYS[1], 'steady_ms', 'events', 'unaudited'))
return {
  steady and 0 or 1, lapsed, lost, flagged, tonumber(steady_text), type(order) == 'string' and order or '', to_ask,
  table.concat({ events or '', unaudited or '', redis.call('EXISTS', base .. 'continuations') }, ' '),
}
