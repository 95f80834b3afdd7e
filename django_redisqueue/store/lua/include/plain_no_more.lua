-- plain_no_more: see plain.lua. What is left unsaid of the job is written, and the entry of a run says no more of it.
-- @include "unsaid"
local function be_plain_no_more(id)
  local f = read(id, 'status', 'child', 'seq')
  if f[3] or f[1] == 'completed' then return end
  redis.call('HSET', job_key(id), 'seq', seq_of(f[1]))
  if f[1] ~= 'processing' then return end
  redis.call('HSET', job_key(id), 'lease', FIRST_LEASE)
  local key = held_key(f[2] or '')
  for at, entry in ipairs(redis.pcall('LRANGE', key, 0, -1)) do
    local name, held = string.match(entry, '^(%d+:(%S+)) ')
    if held == id then return redis.call('LSET', key, at - 1, name) end
  end
end
