-- milestones: a LIST of "<entry's id> <events written before it, ever>", oldest first: one for every so many events.
-- Redis counts the stream's entries and cuts it off at one. What it holds is meant in events, of which an entry has
-- up to 100; a milestone says at which entry to cut. The counter `events` in meta has all that were ever written.
local STEP = math.max(1, math.min(5000, math.floor(events_cap / 100)))
local POPS = 100  -- a call

local function milestone_of(text)
  local entry, before = string.match(text or '', '^(%S+) (%d+)$')
  return entry, tonumber(before)
end

-- Notes an entry with which the counter has passed a multiple of STEP, and holds the stream to its cap, which is
-- looked at no oftener. So one step goes at a time; more, after the cap was lowered, as Redis limits it.
local function note_milestone(entry, before, total)
  if before == 0 then redis.call('DEL', milestones_key) end  -- the counter was lost, and they count by the old one
  if math.floor(before / STEP) == math.floor(total / STEP) then return end
  redis.call('RPUSH', milestones_key, entry .. ' ' .. whole(before))
  local reach = total - events_cap
  for _ = 1, POPS do  -- those of which the next one is far enough back, too
    local _, next_before = milestone_of(redis.call('LINDEX', milestones_key, 1))
    if not next_before or next_before > reach then break end
    redis.call('LPOP', milestones_key)
  end
  local cut, events = milestone_of(redis.call('LINDEX', milestones_key, 0))
  if events and events <= reach then redis.call('XTRIM', events_key, 'MINID', '~', cut) end
end
