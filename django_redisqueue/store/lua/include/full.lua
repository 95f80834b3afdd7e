-- full: what most claims and finishes need none of: ends with consequences, workflows, jobs that fell due. It is put
-- together when it is needed, for to make its functions takes Redis longer than a job does.
-- @include "gathering"
local made
local function full()
  if made then return made end
-- @include "conclude"
-- @include "advance_some"
-- @include "promote"
-- @include "settle"
-- @include "hold_back"
  made = {
    look = look, looked = looked, settle = settle, settled = settled, drop_held = drop_held, promote_due = promote_due,
    flow_of_job = flow_of_job, flow_move = flow_move, is_held = is_held, hold_back = hold_back,
    advance_some = advance_some, flush_flows = flush_flows,
  }
  return made
end

local function flush()
  flush_lists()
  if made then made.flush_flows() end
  flush_events()
end
