-- create_jobs: creates any jobs of enqueue.lua and returns its reply.
-- @include "emit"
-- @include "place"
-- @include "new_job"
-- @include "outbox"
local STRIDE = 8
local has_rows, values, first = ARGV[4] == '1' and is_general, ARGV, 5
if not is_general then values, first = { id, queue, task, payload, '', '0', '', '' }, 1 end
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

local function create(id, queue, task, payload, options, priority, when, audit)
  local key, due = job_key(id), due_of(when)
  if accepted[id] then return 0 end
  if redis.call('EXISTS', key) == 1 then return redis.call('TYPE', key).ok == 'hash' and 0 or -1 end
  local status = due > now and 'scheduled' or 'queued'
  local fields = new_job_fields(status, queue, task, payload, options, priority, audit, '', '')
  if due > now then add_field(fields, 'due_ms', whole(due)) end
  redis.call('HSET', key, unpack(fields))
  put(id, queue, priority, due)
  index(id, options)
  emit_enqueued(id, status, queue, task, payload, options, priority, audit, due > now and due)
  made[queue] = (made[queue] or 0) + 1
  return 1
end

local function create_jobs()
  for at = first, #values, STRIDE do
    check(values[at + 1], values[at + 5], values[at + 6])
    expect_index(values[at + 4])
    if has_rows then ids[#ids + 1] = values[at] end
  end
  if has_rows then accepted, ids = accepted_before(ids), {} end
  for at = first, #values, STRIDE do
    local code = create(unpack(values, at, at + STRIDE - 1))
    codes[#codes + 1] = code
    if has_rows and code >= 0 then ids[#ids + 1] = values[at] end
  end
  if has_rows then note_accepted(ids) end
  for queue in pairs(order) do
    if fresh[queue] then redis.call('LPUSH', queue_key(queue, 'queued'), unpack(fresh[queue])) end
    wake(queue)
  end
  for queue, count in pairs(made) do count_enqueued(queue, count) end
  flush_events()
  return is_general and codes or codes[1]
end
