-- start_gather: starts a gather: its plan, the hash for its results, and a job for each listener, in one step.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 key; 5 gather id; 6 ttl ms of the results; 7 ms to the first check; 8 payload JSON of the
--      listeners' jobs; 9 how many field-value pairs of the plan follow; then the pairs; then 8 fields a listener
--      (1-100): name, queue, task, options, priority, audit, unique, lane (as in enqueue_with_conditions.lua)
-- Reply: 1 started, 0 already known, -1 another gather has the key
-- Sending it again changes nothing: the id decides, and, once the gather is deleted, its first job.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "lanes"
-- @include "gather_plan"
-- @include "new_job"
local key, id, ttl_ms, payload = ARGV[4], ARGV[5], tonumber(ARGV[6]), ARGV[8]
local first_listener, STRIDE = 10 + 2 * tonumber(ARGV[9]), 8
local NEWEST = 10000  -- are listed
expect(plan_key(key), 'hash')
expect(results_key(key), 'hash')
expect(gathers_key, 'zset')
expect(newest_key, 'zset')
expect(timer_key, 'list')
for at = first_listener, #ARGV, STRIDE do
  expect_all(ARGV[at + 1])
  expect_lane(ARGV[at + 1], ARGV[at + 7])
end

local known = redis.call('HGET', plan_key(key), 'id')
if known == id or not known and redis.call('EXISTS', job_key(id .. '.0')) == 1 then return 0 end
if known then return -1 end

local names = {}
for at = first_listener, #ARGV, STRIDE do names[#names + 1] = ARGV[at] end
local poll_ms, expires_ms = now + tonumber(ARGV[7]), now + ttl_ms + EXPIRES_LATER_MS
redis.call('HSET', plan_key(key), 'id', id, 'status', 'collecting', 'listeners', table.concat(names, ' '),
  'payload', payload, 'made_ms', now_text, 'poll_ms', whole(poll_ms), 'expires_ms', whole(expires_ms),
  unpack(ARGV, 10, first_listener - 1))
redis.call('DEL', results_key(key))
redis.call('HSET', results_key(key), 'queryDoneCount', 0)
redis.call('PEXPIRE', results_key(key), whole(ttl_ms))
check_later(key, math.min(poll_ms, expires_ms))
redis.call('ZADD', newest_key, now_text, key)
redis.call('ZREMRANGEBYRANK', newest_key, 0, -NEWEST - 1)

local function make(number, at)
  local job, queue, task, options = id .. '.' .. number, ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local priority, audit, unique, lane = unpack(ARGV, at + 4, at + 7)
  local fields = new_job_fields('queued', queue, task, payload, options, priority, audit, unique, lane)
  note_lane(lane)
  add_field(fields, 'gather', key)
  add_field(fields, 'listener', ARGV[at])
  redis.call('HSET', job_key(job), unpack(fields))
  index(job, options)
  line_up(queue, job, tonumber(priority), false, lane ~= '' and lane or nil)
  count_enqueued(queue, 1)
  wake(queue)
  emit_enqueued(job, 'queued', queue, task, payload, options, priority, audit)
end

for at = first_listener, #ARGV, STRIDE do make(whole((at - first_listener) / STRIDE), at) end
flush_events()
return 1
