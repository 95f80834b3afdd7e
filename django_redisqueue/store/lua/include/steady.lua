-- steady: whether a lapsed lease means a dead child (law 5). While nobody can reach Redis nobody renews, so after a gap
-- between two heartbeats of the whole fleet the living are given time to come back. Nobody reaps before
--   one lease has passed without a gap of over half a lease, or
--   LATE_LEASES leases without a gap of over a whole lease: heartbeats that always come late are no outage, and whoever
--   lives has renewed several times.
-- A clock that has gone back, and another process of Redis, count as a gap of over a lease.
-- Fields of meta: run_id, beat_ms (the last heartbeat), steady_ms (the end of the last gap of over half a lease),
-- reached_ms (of the last of over a whole one)
local LATE_LEASES = 4
local function run_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') end

-- How many ms ago the last gap of over half a lease ended, and the last one of over a whole lease; nil for a gap that
-- goes on until now.
local function since_gaps(lease_ms)
  local known = redis.call('HMGET', KEYS[1], 'run_id', 'beat_ms', 'steady_ms', 'reached_ms')
  local beat, steady, reached = tonumber(known[2]), tonumber(known[3]), tonumber(known[4])
  if not beat or not steady or not reached or now < beat or known[1] ~= run_id() then return nil, nil end
  local gap = now - beat
  return gap <= lease_ms / 2 and now - steady or nil, gap <= lease_ms and now - reached or nil
end

-- How many ms nobody may reap yet.
local function unsteady_for(lease_ms)
  local steady, reached = since_gaps(lease_ms)
  return math.max(0, math.min(lease_ms - (steady or 0), LATE_LEASES * lease_ms - (reached or 0)))
end
