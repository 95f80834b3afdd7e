-- resent: calls that were sent again, for the reply was lost; a part of full.lua.
-- Only one sending of a call may claim anything once it was sent again: another may be kept back by the network for
-- minutes, and the child would never hear what it claims. The number of the call stays as long as the child's lease.
local function note_resend(want)
  local noted = tonumber(redis.pcall('GET', resent_key(want.child))) or -1
  if tonumber(want.call) <= noted then
    want.jobs = 0
    return
  end
  redis.call('SET', resent_key(want.child), want.call)
  redis.call('ZADD', workers_key, 'NX', whole(now + want.lease_ms), want.child)
end

-- A resent call (its reply was lost) gets what it claimed the first time, and still holds.
local function claimed_before(want)
  note_resend(want)
  for _, entry in ipairs(redis.call('LRANGE', held_key(want.child), 0, -1)) do
    if string.sub(entry, 1, #want.mark) == want.mark then
      local id = string.match(entry, '%S+', #want.mark + 1)
      local f = read(id, 'status', 'child', 'queue', 'task', 'payload', 'lease', 'attempts', 'recoveries', 'options')
      if f[1] == 'processing' and f[2] == want.child then
        local lease, attempts, recoveries = integer(lease_of(f[1], f[6])) or 1, integer(f[7]) or 0, integer(f[8]) or 0
        local kind = add_kind(f[3] or 'default', lease, attempts, recoveries, f[4] or '', f[9])
        add_to_reply(id, f[5] or '', kind)
      end
    end
  end
  return batch.size > 0
end
