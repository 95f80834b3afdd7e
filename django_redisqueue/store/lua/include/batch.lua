-- batch: the jobs that a call claims, and its reply (see claim_queues.lua) as it grows.
local batch = { jobs = {}, kinds = {}, entries = {}, lost = {}, size = 0, bytes = 0, examined = 0, full = false,
  alone = false, aside = {}, waits = false }

-- What jobs in a row have in common is in the reply once; returns where.
local function add_kind(queue, lease, attempts, recoveries, task, options)
  local kinds, last = batch.kinds, #batch.kinds
  local head = queue .. ' ' .. lease .. ' ' .. attempts .. ' ' .. recoveries .. ' ' .. task
  if kinds[last - 1] == head and kinds[last] == (options or '') then return last / 2 - 1 end
  kinds[last + 1], kinds[last + 2] = head, options or ''
  return last / 2
end

local function add_to_reply(id, payload, kind)
  local jobs, n = batch.jobs, 3 * batch.size
  jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, payload, kind
  batch.size, batch.bytes = batch.size + 1, batch.bytes + #payload
end

local PAYLOADS = 1000000  -- bytes a call
local function is_too_much(payload, size, bytes)
  batch.full = size > 0 and bytes + #payload > PAYLOADS
  return batch.full
end
