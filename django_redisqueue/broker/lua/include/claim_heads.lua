-- claim_heads: claims the first jobs of lanes, on the fast path if possible; `of` has the name of the lane of each.
-- Returns how many leave their lanes, and which of them run. Those that left without a run have ended or wait, which
-- may have brought other jobs into lanes.
local function claim_heads(request, queue, ids, of, claimed)
  local first, taken, row = batch.size, 0, nil
  local entries = batch.entries
  repeat
    local size, before = batch.size, taken
    taken, row = claim_eligible(request, queue, ids, taken, claimed)
    for at = 1, taken - before do entries[size + at] = entries[size + at] .. ' ' .. of[before + at] end
    if row and claim_one(request, queue, ids[taken + 1], row, claimed, true) then taken = taken + 1 else row = nil end
  until not row or batch.alone
  batch.examined = batch.examined + (taken > 0 and taken or 1)
  if batch.size - first == #ids then return taken, ids end
  local run = {}
  for at = 3 * first + 1, 3 * batch.size, 3 do run[#run + 1] = batch.jobs[at] end
  return taken, run
end
