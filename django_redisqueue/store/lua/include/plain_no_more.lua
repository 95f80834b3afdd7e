-- plain_no_more: see plain.lua, whose two words these are.
local FIRST_LEASE, TWO_EVENTS = '1', '2'

local function be_plain_no_more(id)
  local f = read(id, 'status', 'child', 'lease', 'seq')
  if f[1] ~= 'processing' or f[3] ~= FIRST_LEASE then return end
  local key = held_key(f[2] or '')
  for at, entry in ipairs(redis.pcall('LRANGE', key, 0, -1)) do
    local name, held = string.match(entry, '^(%d+:(%S+)) ')
    if held == id then return redis.call('LSET', key, at - 1, name) end
  end
end
