-- continuation: the rest of a verb over many jobs. Its caller takes one step after another, and each stores here what
-- remains, so that maintenance continues if the caller is gone (law 11).
-- The hash `continuations`: <token> -> "<verb> <queue> <status> <jobs left> <ms>"; until <ms> the caller is assumed to
-- continue. With the token '' nothing is stored: one step does everything.
-- A token begins with the time of the call ("<ms>-"): jobs that were enqueued, or ended, after it are not meant.
local CALLER_TIMEOUT_MS = 5000
local continuations_key = base .. 'continuations'
expect(continuations_key, 'hash')

-- Only a caller that knows how much is left may take a step; otherwise two would, and so take jobs that arrived later.
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

-- since: the field that tells when the job came to its list. A time after `now` is from before the clock went back.
local function is_too_new(id, token, since)
  local called_ms = tonumber(string.match(token, '^(%d+)%-'))
  local ms = called_ms and integer(read(id, since)[1]) or 0
  return called_ms and ms > called_ms and ms <= now
end

-- Those of these ids that the caller means: the ones in ARGV from `first` on, or all if there are none. Others have
-- moved up since the caller looked, because jobs before them are gone.
local function only_meant(ids, first)
  if not ARGV[first] then return ids end
  local is_meant, found = {}, {}
  for at = first, #ARGV do is_meant[ARGV[at]] = true end
  for _, id in ipairs(ids) do
    if is_meant[id] then found[#found + 1] = id end
  end
  return found
end
