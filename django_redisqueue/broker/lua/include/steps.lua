-- steps: what a job stores from run to run: the results of its steps, its cursors and its waits, in a hash of its own.
-- Such a job has an "s" in `watched`. They are deleted when it completes; a failed or cancelled job keeps them for a
-- requeue, and they are deleted with its hash.
-- @include "wait_list"
-- @include "fast_path/implied_fields"
local function steps_key(id) return base .. 'steps:' .. id end
local function has_steps(watched) return watched and string.find(watched, 's', 1, true) ~= nil end

local FIELD_BYTES = 100  -- of memory, besides name and value
local function steps_bytes(id) return integer(redis.pcall('HGET', steps_key(id), 'bytes')) or 0 end

local function forget_steps_of(id, watched)
  if has_steps(watched) then redis.call('UNLINK', steps_key(id)) end
end

-- The job will start over, so it counts as not started (unique.lua).
local function start_over(id, watched)
  forget_steps_of(id, watched)
  if has_steps(watched) then redis.call('HSET', job_key(id), 'watched', (string.gsub(watched, 's', ''))) end
end

-- An event that was sent, and the jobs that wait for one (waits.lua).
local function event_key(event) return base .. 'event:' .. event end
local function awaiting_key(event) return base .. 'awaiting:' .. event end

-- Returns the bytes that a job keeps at its end.
local function close_steps(id, status, watched)
  if not has_steps(watched) then return 0 end
  local event = read(id, 'waits_for')[1]
  if event then
    redis.pcall('ZREM', awaiting_key(event), id)
    leave_wait_list(id, event)
  end
  if status ~= 'completed' then return steps_bytes(id) end
  forget_steps_of(id, watched)
  return 0
end

-- Stores a field. Returns false if all fields together would exceed `limit` bytes. Newly stored progress cancels out
-- the recoveries before it: only those that follow can make the job poison (recover.lua).
local function remember(id, field, value, limit)
  local key = steps_key(id)
  local old = redis.call('HSTRLEN', key, field)
  local bytes = steps_bytes(id) + #value - old
  if redis.call('HEXISTS', key, field) == 0 then bytes = bytes + #field + FIELD_BYTES end
  if bytes > limit then return false end
  write_even_when_full()
  local watched, recoveries = unpack(read(id, 'watched', 'recoveries'))
  if not has_steps(watched) then
    redis.call('HSET', job_key(id), 'watched', (watched or '') .. 's')
    leave_fast_path(id)
  end
  if recoveries then redis.call('HSET', job_key(id), 'forgiven', recoveries) end
  redis.call('HSET', key, field, value, 'bytes', text(bytes))
  return true
end
