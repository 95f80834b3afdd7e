-- enqueue: creates jobs. Sending an id again changes nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 whether the jobs have rows in an outbox (0/1); 5.. 8 fields a job (1-100 jobs): id, queue, task,
--      payload JSON, options JSON or '', priority, when ('' now, '+<ms>' from now, '<ms>' instant), audit ('' = all)
-- Reply, one code a job: 1 created, 0 already known, -1 its key holds something other than a job
-- Arguments that the options redact are stored in the hash only, not in the event. A full Redis refuses the first
-- write, so nothing is half created.
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "new_job"
-- @include "outbox"
local STRIDE, FIRST, has_rows = 8, 5, ARGV[4] == '1'
local seen, codes, fresh, order, made, accepted, ids = {}, {}, {}, {}, {}, {}, {}

local function check(queue, priority, when)
  if not seen[queue] then
    seen[queue] = true
    expect_queue(queue, 'queued', 'wake', 'meta')
  end
  if priority ~= '0' then
    assert(tonumber(priority), 'priority is not a number')
    expect_queue(queue, 'priority')
  end
  if when ~= '' then
    assert(due_of(when), 'when is not a number')
    expect_queue(queue, 'scheduled')
  end
end

local function put(id, queue, priority, due)
  if due > now then
    postpone(queue, 'scheduled', id, due)
  elseif priority ~= '0' then
    place(queue, id, tonumber(priority))
    order[queue] = true
  else
    fresh[queue], order[queue] = fresh[queue] or {}, true
    fresh[queue][#fresh[queue] + 1] = id
  end
end

for at = FIRST, #ARGV, STRIDE do
  check(ARGV[at + 1], ARGV[at + 5], ARGV[at + 6])
  expect_index(ARGV[at + 4])
  if has_rows then ids[#ids + 1] = ARGV[at] end
end
if has_rows then accepted, ids = accepted_before(ids), {} end

for at = FIRST, #ARGV, STRIDE do
  local id, queue, task, payload = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local options, priority, due, audit = ARGV[at + 4], ARGV[at + 5], due_of(ARGV[at + 6]), ARGV[at + 7]
  local key = job_key(id)
  if accepted[id] then
    codes[#codes + 1] = 0
  elseif redis.call('EXISTS', key) == 1 then
    codes[#codes + 1] = redis.call('TYPE', key).ok == 'hash' and 0 or -1
  else
    local status = due > now and 'scheduled' or 'queued'
    local watched = is_indexed(options) and 'i' or ''
    local fields = new_job_fields(status, queue, task, payload, options, priority, audit, watched)
    if due > now then add_field(fields, 'due_ms', whole(due)) end
    redis.call('HSET', key, unpack(fields))
    put(id, queue, priority, due)
    index(id, options)
    emit_enqueued(id, status, queue, task, payload, options, priority, audit, due > now and due)
    codes[#codes + 1], made[queue] = 1, (made[queue] or 0) + 1
  end
  if has_rows and codes[#codes] >= 0 then ids[#ids + 1] = id end
end
if has_rows then note_accepted(ids) end
for queue in pairs(order) do
  if fresh[queue] then redis.call('LPUSH', queue_key(queue, 'queued'), unpack(fresh[queue])) end
  wake(queue)
end
for queue, count in pairs(made) do count_enqueued(queue, count) end
flush_events()
return codes
