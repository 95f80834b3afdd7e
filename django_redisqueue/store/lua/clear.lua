-- clear: empties a list from its oldest end. Finished jobs are deleted; jobs that wait for their turn
-- (queued, scheduled, retrying) become cancelled, so that the record says what happened to them.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 queue; 5 status; 6 how many (1-100); 7 resend window ms; 8 whether a mirror reads the
--      stream (0/1); 9-11 token, jobs left and whether this is the first step (0/1), as in continuation.lua
-- Reply: { how many it looked at (0 when the list is empty, or when somebody else goes on with it), how many of
--      them left the list: a completed one whose result others need goes behind the newest }
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "delete_job"
-- @include "put_off"
-- @include "continuation"
local queue, status, limit = ARGV[4], ARGV[5], tonumber(ARGV[6])
assert(FINAL[status] or status == 'queued' or status == 'scheduled' or status == 'retrying',
  'jobs of this status cannot be cleared')
expect_queue(queue, status, 'priority', 'cancelled', 'meta', 'deleted')
if not may_step(ARGV[9], ARGV[10], ARGV[11] == '1') then return { 0, 0 } end
write_even_when_full()

local function cancel(id)
  local f = read(id, 'status', 'task', 'attempts', 'seq', 'audit', 'watched', 'lingers', 'then')
  if f[7] then linger_no_more(queue, id, f[1]) end
  if f[1] ~= status then return end
  conclude({ id = id, queue = queue, task = f[2] or '', child = '', attempt = integer(f[3]) or 0,
    seq = integer(f[4]) or 1, audit = f[5], watched = f[6], from = status,
    dependants = f[8] }, 'cancelled', '', '', '')
end

local resend_ms, mirrored_ms = tonumber(ARGV[7]), mirrored_until(ARGV[8] == '1')
local function let_go(id)
  if status == 'completed' and (is_waited_for(id) or is_wanted(id)) then return true end
  delete_job(queue, status, id, resend_ms, mirrored_ms)
end

local function clear_list()
  local ids = redis.call('LRANGE', queue_key(queue, 'queued'), -limit, -1)
  for at = #ids, 1, -1 do cancel(ids[at]) end
  if #ids > 0 then redis.call('LTRIM', queue_key(queue, 'queued'), 0, -1 - #ids) end
  return #ids, #ids
end

local function clear_sorted(list, act)
  local key = queue_key(queue, list)
  local ids = redis.call('ZRANGE', key, 0, limit - 1)
  local leave, stay = {}, {}
  for _, id in ipairs(ids) do table.insert(act(id) and stay or leave, id) end
  if #leave > 0 then redis.call('ZREM', key, unpack(leave)) end
  put_off(key, stay)
  return #ids, #leave
end

local seen, gone
if FINAL[status] then
  seen, gone = clear_sorted(status, let_go)
elseif status == 'queued' then
  seen, gone = clear_list()
  if seen == 0 then seen, gone = clear_sorted('priority', cancel) end
else
  seen, gone = clear_sorted(status, cancel)
end
leave_word(ARGV[9], 'clear', queue, status, seen > 0 and tonumber(ARGV[10]) - seen or 0)
flush()
return { seen, gone }
