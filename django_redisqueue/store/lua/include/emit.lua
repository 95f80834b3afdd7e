-- emit: one transition of a job.
-- `audit` thins at the source: '' or 'all', 'final', 'failed', 'none'. `extra` is JSON text that begins with a comma,
-- or ''; `value` its arguments, result or error (announce.lua).
-- @include "announce"
local function emit(id, status, queue, task, child, attempt, seq, audit, extra, value)
  if audit == 'none' or audit == 'failed' and status ~= 'failed' then return end
  if audit == 'final' and status ~= 'completed' and status ~= 'failed' and status ~= 'cancelled' then return end
  local alike = alike_of(status, queue, task, child, attempt, seq, extra or '')
  announce(id, alike, value and #value <= INLINE and value or '')
end
