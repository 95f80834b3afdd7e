-- ran: what a job that runs again keeps of the run that has just ended: when the first of them started, and their
-- children, in order, joined by blanks. Of many runs only the first are kept, so that a hash stays small.
local MOST_RAN = 500  -- bytes of all those names; no cap of memory counts them
local function remember_run(id, child)
  local f = read(id, 'first_ms', 'started_ms', 'ran')
  local ran = f[3] and f[3] .. ' ' .. child or child
  if not f[1] and f[2] then redis.call('HSET', job_key(id), 'first_ms', f[2]) end
  if #ran <= MOST_RAN then redis.call('HSET', job_key(id), 'ran', ran) end
end
