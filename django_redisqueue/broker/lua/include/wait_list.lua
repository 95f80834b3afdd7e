-- wait_list: the lists of parked jobs, by the time since which they have waited: one ZSET each for those that wait for
-- an event, for an approval, and for time to pass. These jobs are scheduled, and have `waits_for` in their hash.
local function wait_list_key(event)
  if event == '' then return base .. 'waits:sleep' end
  return base .. (string.sub(event, 1, 9) == 'approval:' and 'waits:approval' or 'waits:event')
end
-- A job resumes or ends. pcall, because a key of the wrong type must not stop it.
local function leave_wait_list(id, event) redis.pcall('ZREM', wait_list_key(event), id) end
