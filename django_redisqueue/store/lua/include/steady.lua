-- steady_for: since how many ms this very Redis has been beaten without a gap, or nil after an outage
-- (law 5). A gap longer than half a lease counts as one, for whichever side it was on; so does a clock
-- that has gone back.
local function run_id() return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') end

local function steady_for(lease_ms)
  local known = redis.call('HMGET', KEYS[1], 'run_id', 'beat_ms', 'steady_ms')
  local beat, since = tonumber(known[2]), tonumber(known[3])
  if not beat or not since or now < beat or now - beat > lease_ms / 2 or known[1] ~= run_id() then return nil end
  return now - since
end
