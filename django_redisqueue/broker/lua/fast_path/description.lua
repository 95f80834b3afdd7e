-- description: what the entry of a run on the fast path (entry.lua) has behind '<call>:<id>'.
-- @include "job_size"
local FIELDS = 9  -- of the hash at its end, without those that most jobs do not have
-- What follows '<call>:<id>'; '' for a task whose name has blanks (no child knows it), which takes the slow path.
local function describe_run(payload, options, queue, task, child)
  if not string.find(task, '^%S+$') then return '' end
  local fields = FIELDS + (options and 1 or 0) + (queue ~= 'default' and 1 or 0)
  local texts, longest = #payload + #(options or ''), math.max(#payload, #(options or ''), #task, #child)
  local bytes = estimate_bytes(fields, texts, longest > SHORT) .. (longest > SHORT and '' or '+')
  return ' ' .. bytes .. ' ' .. queue .. ' ' .. task
end
