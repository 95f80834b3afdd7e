-- claim_plain: gives queued jobs whose runs are plain (plain.lua) to the child that claims: most jobs, in one loop.
-- @include "plain"
-- @include "batch"
-- Takes the ids behind the first `left` as long as they are such jobs. Returns how many of all are taken then, and if
-- the next one is something else, what was read of it.
local function take_plain(want, queue, ids, left, claimed)
  local child, mark, jobs, entries = want.child, want.mark, batch.jobs, batch.entries
  local size, bytes = batch.size, batch.bytes
  local at = #claimed
  local task, options, kind, alike, length, facts  -- what they share is put together when it changes
  for position = left + 1, #ids do
    local id = ids[position]
    local f = read_if_plain(id)
    if not is_plain(f) then
      batch.size, batch.bytes = size, bytes
      return left, f
    end
    local payload, n = f[3], 3 * size
    if bytes + #payload > PAYLOADS and is_too_much(payload, size, bytes) then break end
    if f[2] ~= task or f[4] ~= options then
      task, options, kind, length = f[2], f[4], add_kind(queue, 1, 0, 0, f[2], f[4]), nil
      alike = alike_of('processing', queue, task, child, 1, 2, '')
    end
    if #payload ~= length then length, facts = #payload, write_facts(payload, options, queue, task, child) end
    redis.call('HSET', job_prefix .. id, 'status', 'processing', 'child', child, 'started_ms', now_text)
    announce(id, alike, '')
    jobs[n + 1], jobs[n + 2], jobs[n + 3] = id, payload, kind
    claimed[at + 1], claimed[at + 2] = now_text, id
    size, bytes, left, at = size + 1, bytes + #payload, position, at + 2
    entries[size] = mark .. id .. facts
  end
  batch.size, batch.bytes = size, bytes
  return left, nil
end
