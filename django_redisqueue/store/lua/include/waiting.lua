-- waiting: jobs that wait for parents, or for their workflow's release, and what ends that.
-- `conclude` is given in conclude.lua, which needs this.
-- @include "flow_emit"
local conclude
local TOLD = { 'waits', '0' }  -- of a job whose last parent is done

-- While they wait, jobs of no workflow stand in a set of their queue: nothing else would show them.
local function join_waiting(queue, id)
  if not flow_of(id) then redis.call('ZADD', queue_key(queue, 'waiting'), now_text, id) end
end
local function leave_waiting(queue, id)
  if not flow_of(id) then redis.call('ZREM', queue_key(queue, 'waiting'), id) end
end

-- A waiting job may go: into its queue, or among those due later. f: its fields; was_there: not made just now.
local function free(id, f)
  local queue, seq, priority = f.queue or 'default', (integer(f.seq) or 1) + 1, tonumber(f.priority) or 0
  if not is_sound(queue) then return leave_for_later('free:' .. id) end
  moved = moved + 1
  local due = due_of(f.when or '') or now
  local status, extra = 'queued', nil
  if due > now then status, extra = 'scheduled', ',"dueMs":' .. whole(due) end
  redis.call('HSET', job_key(id), 'status', status, 'seq', text(seq), unpack(f.was_told and TOLD or {}))
  if status == 'scheduled' then
    redis.call('HSET', job_key(id), 'due_ms', whole(due))
    postpone(queue, 'scheduled', id, due)
  else
    place(queue, id, priority)
    wake(queue)
  end
  if f.was_there then leave_waiting(queue, id) end
  flow_move(id, 'waiting', status)
  local attempts = f.was_there and not f.was_told and read(id, 'attempts')[1] or 0  -- of one that was held back
  emit(id, status, queue, f.task or '', '', integer(attempts) or 0, seq, f.audit, extra)
end

local function read_waiting(id)
  local f = read(id, 'queue', 'task', 'priority', 'seq', 'audit', 'when')
  return { queue = f[1], task = f[2], priority = f[3], seq = f[4], audit = f[5], when = f[6], was_there = true }
end

local function cancel_waiting(id, f, reason, skips)
  if not is_sound(f.queue or 'default') then return leave_for_later('end:' .. id) end
  moved = moved + 1
  leave_waiting(f.queue or 'default', id)
  local more = read(id, 'attempts', 'watched', 'then')
  conclude({ id = id, queue = f.queue or 'default', task = f.task or '', child = '', attempt = integer(more[1]) or 0,
    seq = integer(f.seq) or 1, audit = f.audit, watched = more[2], from = 'waiting', skips = skips,
    dependants = more[3] }, 'cancelled', '', '', reason)
end
