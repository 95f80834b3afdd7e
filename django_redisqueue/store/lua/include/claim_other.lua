-- claim_other: what most claims need none of, a part of full.lua: jobs whose runs will not be plain.
-- @include "tombstone"
-- @include "claim_aside"
-- f, here and below: status, task, payload, options, seq, lease, audit, attempts, recoveries
local function hand_over(want, queue, id, f, flow)
  local lease, seq, attempts = (integer(f[6]) or 0) + 1, (integer(f[5]) or 1) + 1, integer(f[8]) or 0
  local task, payload = f[2] or '', f[3] or ''  -- of a corrupt hash: for the child to fail it
  redis.call('HSET', job_key(id), 'status', 'processing', 'child', want.child, 'lease', text(lease),
    'started_ms', now_text, 'seq', text(seq))
  if flow then flow_move(id, 'queued', 'processing') end
  emit(id, 'processing', queue, task, want.child, attempts + 1, seq, f[7])
  batch.entries[batch.size + 1] = want.mark .. id
  add_to_reply(id, payload, add_kind(queue, lease, attempts, integer(f[9]) or 0, task, f[4]))
end

-- What is not known of it yet.
local function read_on(id, f)
  if not f[1] then
    return read(id, 'status', 'task', 'payload', 'options', 'seq', 'lease', 'audit', 'attempts', 'recoveries')
  end
  f[6], f[7], f[8], f[9] = unpack(read(id, 'lease', 'audit', 'attempts', 'recoveries'))
  return f
end

-- An id whose run would not be plain: whether it leaves its list (claimed, held back, set aside, stale, no hash).
local function take(want, queue, id, f, claimed)
  f = read_on(id, f)
  if f[1] ~= 'queued' then
    if not linger_no_more(queue, id, f[1]) then batch.lost[#batch.lost + 1] = id end
    return true
  end
  local flow = flow_of_job(id)
  if flow ~= nil and may_not_start(id, flow) then
    hold_back(flow, queue, id, f)
    return true
  end
  local is_suspect = f[9] and (integer(f[9]) or 0) > 0
  if is_suspect and (batch.size > 0 or want.holding > 0) then
    meet_suspect(queue, id)
    return true
  end
  if is_too_much(f[3] or '', batch.size, batch.bytes) then return false end
  batch.alone = is_suspect
  hand_over(want, queue, id, f, flow)
  claimed[#claimed + 1], claimed[#claimed + 2] = now_text, id
  return true
end

-- A job that must run alone is the only one its child holds, until it has ended.
local function runs_one_alone(want)
  local id = string.match(redis.call('LINDEX', held_key(want.child), 0), ':(%S+)')
  return (integer(read(id, 'recoveries')[1]) or 0) > 0
end
