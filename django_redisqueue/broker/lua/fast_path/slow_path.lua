-- slow_path: all claims and outcomes that the fast path does not serve: ends with consequences, jobs that ran before or
-- became due. Built on first use: creating these functions costs more than a job on the fast path.
-- @include "pending_writes"
-- @include "skip_list"
-- @include "fast_path/claim"
-- @include "fast_path/workflow_runs"
local slow_path_built
local function slow_path()
  if slow_path_built then return slow_path_built end
-- @include "emit"
-- @include "place"
-- @include "end_job"
-- @include "workflow_steps"
-- @include "promote"
-- @include "outcome"
-- @include "slow_claim"
-- @include "claim_keyed"
-- @include "claim_by_age"
  slow_path_built = {
    read_claim = read_claim, claims = claims, record_outcome = record_outcome, settled_ids = settled_ids,
    drop_settled = drop_settled, claim_one = claim_one, claimed_before = claimed_before,
    holds_one_that_runs_alone = holds_one_that_runs_alone, first_set_aside = first_set_aside,
    set_suspects_aside = set_suspects_aside, promote_due = promote_due, advance_some = advance_some,
    call_back = call_back, notify = notify, claim_keyed = claim_keyed, claim_lanes = claim_lanes,
    claim_by_age = claim_by_age, forget_passes = forget_passes,
    free_slots = function(jobs) lanes().free_slots(jobs) end,
  }
  return slow_path_built
end

local function flush()
  if next(loaded_workflows) then flush_workflows(function(...) return slow_path().call_back(...) end) end
  flush_pending_writes()  -- including what a callback has counted
  flush_events()
end
