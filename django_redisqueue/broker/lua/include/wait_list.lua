-- wait_list: the list of jobs that are parked, by the instant since when: a ZSET each for those that wait for an event,
-- for an approval, and for time to pass. Its jobs are scheduled, and have `waits_for` in their hash.
local function wait_list_key(event)
  if event == '' then return base .. 'waits:sleep' end
  return base .. (string.sub(event, 1, 9) == 'approval:' and 'waits:approval' or 'waits:event')
end
-- A job goes on, or ends. pcall, because a key of a wrong type stops nobody.
local function leave_wait_list(id, event) redis.pcall('ZREM', wait_list_key(event), id) end
