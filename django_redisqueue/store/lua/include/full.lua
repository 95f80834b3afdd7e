-- full: what most claims and finishes need none of: ends with consequences, workflows, jobs that fell due. It is put
-- together when it is needed, for to make its functions takes Redis longer than a job does.
-- @include "gathering"
-- @include "batch"
local made
local function full()
  if made then return made end
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "advance_some"
-- @include "promote"
-- @include "settle"
-- @include "hold_back"
-- @include "claim_other"
-- @include "resent"
  made = {
    look = look, looked = looked, settle = settle, settled = settled, drop_held = drop_held, promote_due = promote_due,
    take = take, claimed_before = claimed_before, runs_one_alone = runs_one_alone,
    first_aside = first_aside, set_aside = set_aside,
    advance_some = advance_some, flush_flows = flush_flows,
  }
  return made
end

local function flush()
  flush_lists()
  if made then made.flush_flows() end
  flush_events()
end
