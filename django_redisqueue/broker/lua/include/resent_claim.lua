-- resent_claim: a call that a child sends again returns what it returned before. Included by slow_claim.lua.
-- Once a call was sent again, only one sending of it may claim anything: the network may hold the other back for
-- minutes, and the child would never receive what it claims. The call's number is kept for longer than that, but not
-- permanently: while it is kept, the child's calls are not single runs (fast_path/single_run.lua).
local KEPT_BACK_MS = '3600000'
local function note_resend(request)
  local noted = tonumber(redis.pcall('GET', resent_key(request.child))) or -1
  if tonumber(request.call) <= noted then
    request.jobs = 0
    return
  end
  redis.call('SET', resent_key(request.child), request.call, 'PX', KEPT_BACK_MS)
  redis.call('ZADD', workers_key, 'NX', whole(now + request.lease_ms), request.child)
end

-- Adds to the reply what the first sending of this call claimed and the child still holds.
local function claimed_before(request)
  note_resend(request)
  for _, entry in ipairs(redis.call('LRANGE', processing_key(request.child), 0, -1)) do
    if string.sub(entry, 1, #request.mark) == request.mark then
      local id = string.match(entry, '%S+', #request.mark + 1)
      local status, child, queue, task, payload, lease, attempts, recoveries, options = unpack(
        read(id, 'status', 'child', 'queue', 'task', 'payload', 'lease', 'attempts', 'recoveries', 'options'))
      if status == 'processing' and child == request.child then
        add_to_reply(id, payload or '', add_kind(queue or 'default', integer(lease_of(status, lease)) or 1,
          integer(attempts) or 0, integer(recoveries) or 0, task or '', options))
      end
    end
  end
  return batch.size > 0
end
