-- emit: one transition of a job. A separate file, because the fast path calls only add_event().
-- `audit` thins events at the source: '' or 'all', 'final', 'failed', 'none'. `extra` is JSON text that begins with a
-- comma, or ''; `value` is its arguments, result or error (events.lua).
-- @include "events"
local function emit(id, status, queue, task, child, attempt, seq, audit, extra, value)
  if audit == 'none' or audit == 'failed' and status ~= 'failed'
    or audit == 'final' and status ~= 'completed' and status ~= 'failed' and status ~= 'cancelled' then
    has_unaudited = true
    return
  end
  local shared = event_json(status, queue, task, child, attempt, seq, extra or '')
  add_event(id, shared, value and #value <= INLINE and value or '')
end
