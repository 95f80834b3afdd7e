-- new_flow_job: what is written of a job that is made with its workflow; at: where its arguments begin (see push.lua).
-- @include "new_job"
local function fields_in_flow(at, status)
  local _, queue, task, payload, options, priority, when, audit = unpack(ARGV, at, at + 7)
  local waits, names, parents, on_fail = unpack(ARGV, at + 8, at + 11)
  local fields = new_fields(status, queue, task, payload, options, priority, audit)
  if when ~= '' then add(fields, 'when', when) end
  if waits ~= '0' then add(fields, 'waits', waits) end
  if names ~= '' then add(fields, 'then', names) end
  if parents ~= '' then add(fields, 'after', parents) end
  if on_fail ~= '' then add(fields, 'on_fail', on_fail) end
  return fields
end
