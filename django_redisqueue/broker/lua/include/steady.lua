-- steady: whether an expired lease means a dead child (law 5). While Redis cannot be reached, no lease is renewed, so
-- after a gap between two heartbeats of the whole fleet, living children get time to return. No process reaps before
--   one lease has passed without a gap of over half a lease, or
--   LATE_LEASES leases without a gap of over a whole lease: heartbeats that are always late are no outage, and living
--   children have renewed several times.
-- A clock that went back and a restarted Redis count as a gap of over a lease.
-- Fields of meta: run_id, beat_ms (the last heartbeat), steady_ms (the end of the last gap of over half a lease),
-- reached_ms (that of the last gap of over a whole one)
local LATE_LEASES = 4
local function run_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') end

-- How many ms ago the last gap of over half a lease ended, and of over a whole lease; nil for a gap that has not ended.
local function since_gaps(lease_ms)
  local known_run_id, beat_ms, steady_ms, reached_ms = unpack(
    redis.call('HMGET', KEYS[1], 'run_id', 'beat_ms', 'steady_ms', 'reached_ms'))
  local beat, steady, reached = tonumber(beat_ms), tonumber(steady_ms), tonumber(reached_ms)
  if not beat or not steady or not reached or now < beat or known_run_id ~= run_id() then return nil, nil end
  local gap = now - beat
  return gap <= lease_ms / 2 and now - steady or nil, gap <= lease_ms and now - reached or nil
end

-- For how many more ms no process may reap.
local function reaping_delay_ms(lease_ms)
  local steady, reached = since_gaps(lease_ms)
  return math.max(0, math.min(lease_ms - (steady or 0), LATE_LEASES * lease_ms - (reached or 0)))
end
