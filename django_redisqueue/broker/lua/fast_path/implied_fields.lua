-- implied_fields: the hash of a job whose only run is on the fast path has no `lease`, because it is the first one.
-- `seq`, the number of events so far, is also implied: if it is missing, by the status; if present, by the completion,
-- which adds one and does not write it. Any other transition writes both.
-- Jobs with `audit` or `watched` have `seq` from the beginning; those of gathers need not, because their ids tell. A
-- released job of a workflow also has it, so its claim reads `audit`, and its end `watched` (workflow_ends.lua).
local FIRST_LEASE = '1'
local function has_run(status) return status == 'processing' or status == 'completed' end
local function lease_of(status, lease) return lease or has_run(status) and FIRST_LEASE end
local function seq_of(status, seq, lease)
  if lease or not has_run(status) then return integer(seq) or 1 end
  return (integer(seq) or 2) + (status == 'completed' and 1 or 0)
end

-- Writes the implied fields and shortens the run's entry, so that its completion takes the slow path.
local function leave_fast_path(id)
  local status, child, seq, lease = unpack(read(id, 'status', 'child', 'seq', 'lease'))
  if lease or status == 'completed' then return end
  redis.call('HSET', job_key(id), 'seq', seq_of(status, seq))
  if status ~= 'processing' then return end
  redis.call('HSET', job_key(id), 'lease', FIRST_LEASE)
  local key = processing_key(child or '')
  for at, entry in ipairs(redis.pcall('LRANGE', key, 0, -1)) do
    local name, held_id = string.match(entry, '^(%d+:(%S+)) ')
    if held_id == id then return redis.call('LSET', key, at - 1, name) end
  end
end
