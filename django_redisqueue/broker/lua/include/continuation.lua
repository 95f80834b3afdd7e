-- continuation: the rest of a verb over many jobs. Its caller takes one step after another, and each stores here what
-- remains, so that maintenance continues if the caller is gone (law 11).
-- The hash `continuations`: <token> -> "<verb> <queue> <status> <jobs left> <ms>"; until <ms> the caller is assumed to
-- continue. With the token '' nothing is stored: one step does all.
local CALLER_TIMEOUT_MS = 5000
local continuations_key = base .. 'continuations'
expect(continuations_key, 'hash')

-- Only a caller that knows how much is left may take a step; otherwise two would, and so take jobs that came later.
local function may_continue(token, left, is_first)
  if token == '' then return true end
  local known = redis.call('HGET', continuations_key, token)
  if is_first then return not known end
  return known and string.match(known, ' (%d+) %d+$') == left
end

local function store_continuation(token, verb, queue, status, left)
  if token == '' then return end
  if left <= 0 then return redis.call('HDEL', continuations_key, token) end
  local rest = table.concat({ verb, queue, status, whole(left), whole(now + CALLER_TIMEOUT_MS) }, ' ')
  redis.call('HSET', continuations_key, token, rest)
end
