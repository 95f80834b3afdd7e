-- continuation: what a verb over many jobs has left to do. Its caller takes one step after another, and each
-- leaves word here of what remains, so that maintenance goes on if the caller is gone (law 11).
-- The hash `continuations`: <token> -> "<verb> <queue> <status> <jobs left> <ms>"; until <ms> the caller is
-- believed to be at it. A token of '' leaves no word: what is to be done is done in one step.
local PATIENCE_MS = 5000
local continuations_key = base .. 'continuations'
expect(continuations_key, 'hash')

-- Only who knows what is left may take a step: else two would take it, and with it jobs that came later.
local function may_step(token, left, is_first)
  if token == '' then return true end
  local known = redis.call('HGET', continuations_key, token)
  if is_first then return not known end
  return known and string.match(known, ' (%d+) %d+$') == left
end

local function leave_word(token, verb, queue, status, left)
  if token == '' then return end
  if left <= 0 then return redis.call('HDEL', continuations_key, token) end
  local word = table.concat({ verb, queue, status, whole(left), whole(now + PATIENCE_MS) }, ' ')
  redis.call('HSET', continuations_key, token, word)
end
