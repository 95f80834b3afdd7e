-- description: what follows '<call>:<id>' in the entry of a run on the fast path (entry.lua).
-- @include "job_size"
local FIELDS = 9  -- of the hash at the job's end, without those that most jobs do not have
local RELEASED = 3  -- more fields of a job that its last parent has released: seq, waits and after
-- What follows '<call>:<id>'; '' for a task whose name has spaces (no child has it), which takes the slow path.
-- more_fields: of the hash; longest_other: the length of the longest text that only such a hash has
local function describe_run(payload, options, queue, task, child, more_fields, longest_other)
  if not string.find(task, '^%S+$') then return '' end
  local fields = FIELDS + (more_fields or 0) + (options and 1 or 0) + (queue ~= 'default' and 1 or 0)
  local texts = #payload + #(options or '')
  local longest = math.max(#payload, #(options or ''), #task, #child, longest_other or 0)
  local bytes = estimate_bytes(fields, texts, longest > SHORT) .. (longest > SHORT and '' or '+')
  return ' ' .. bytes .. ' ' .. queue .. ' ' .. task
end
