-- parents: the jobs that a new one waits for (admit.lua), and what they mean for it.
--   after: '' or what the failure of one means (wait, skip, go_on) and their ids, joined by blanks
-- @include "followers"
-- @include "plain_no_more"
local RANK = { wait = 0, skip = 1, go_on = 2 }
local function policy_of(after) return RANK[string.match(after, '^%S*')] end
local function parents_of(after) return string.gmatch(string.match(after, ' .*$') or '', '%S+') end

local function expect_parents(after)
  assert(after == '' or policy_of(after), 'after is neither empty nor a policy with ids')
  for parent in parents_of(after) do expect(followers_key(parent), 'zset') end
end

-- waiting: the parents that it waits for; reading: those that have completed, with a result; watched: what stands in
-- their `watched`; reason: why it is to be cancelled; unknown: a parent that is not known, when it is not made without.
local function look_at_parents(after, takes_orphans)
  local found = { rank = policy_of(after), waiting = {}, reading = {}, watched = {} }
  for parent in parents_of(after) do
    local f = read(parent, 'status', 'watched')
    local is_lost = not f[1] or FINAL[f[1]] and is_past_retry(parent)
    found.watched[parent] = f[2] or ''
    if not f[1] and not takes_orphans then
      found.unknown = parent
    elseif f[1] == 'completed' then
      if has_result(parent) then table.insert(found.reading, parent) end
    elseif not is_lost and (found.rank == 0 or not FINAL[f[1]]) then
      table.insert(found.waiting, parent)
    elseif found.rank < 2 then
      found.reason = is_lost and 'parent_gone' or 'skipped'
    end
  end
  return found
end

local function follow_as(id, score, parents, watched)
  for _, parent in ipairs(parents) do
    redis.call('ZADD', followers_key(parent), score, id)
    if not has(watched[parent], 'f') then
      redis.call('HSET', job_key(parent), 'watched', watched[parent] .. 'f')
      be_plain_no_more(parent)
    end
  end
end

local function follow(id, found)
  follow_as(id, found.rank, found.waiting, found.watched)
  follow_as(id, READS, found.reading, found.watched)
end
