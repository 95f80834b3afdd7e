-- unsaid: the hash of a job whose only run is plain (plain.lua) says neither `lease` nor `seq`, which its status
-- tells: the first lease, and the number of events until then. Whatever else becomes of the job writes both.
-- A job of which more than its queue is concerned (`audit`, `watched`) says its `seq` from the beginning; those of
-- workflows and gathers need not, for their ids tell.
local FIRST_LEASE = '1'
local function has_run(status) return status == 'processing' or status == 'completed' end
local function lease_of(status, lease) return lease or has_run(status) and FIRST_LEASE end
local function seq_of(status, seq)
  return integer(seq) or status == 'processing' and 2 or status == 'completed' and 3 or 1
end
