-- parents: the parents of a new job (enqueue_with_conditions.lua), and what their statuses mean for it.
--   after: '' or what a parent's failure means (wait, skip, go_on) and the ids of the parents, separated by spaces
-- @include "followers"
-- @include "fast_path/implied_fields"
local RANK = { wait = 0, skip = 1, go_on = 2 }
local function policy_of(after) return RANK[string.match(after, '^%S*')] end
local function parents_of(after) return string.gmatch(string.match(after, ' .*$') or '', '%S+') end

local function expect_parents(after)
  assert(after == '' or policy_of(after), 'after is neither empty nor a policy with ids')
  for parent in parents_of(after) do expect(followers_key(parent), 'zset') end
end

-- The same parents, with the job that a duplicate's id leads to in place of that id.
local function with_owners(after)
  return (string.gsub(after, '%S+', function(parent)
    local owner = redis.pcall('HGET', job_key(parent), 'alias')
    if type(owner) ~= 'string' then return nil end
    expect(followers_key(owner), 'zset')
    return owner
  end))
end

-- Returns waiting: the parents that it waits for; reading: those that have completed with a result; watched: their
-- `watched`; reason: why it must be cancelled; unknown: a parent that does not exist, if that is not allowed.
local function read_parents(after, allow_missing_parents)
  local found = { rank = policy_of(after), waiting = {}, reading = {}, watched = {} }
  for parent in parents_of(after) do
    local status, watched = unpack(read(parent, 'status', 'watched'))
    local is_lost = not status or is_final(status) and is_past_retry(parent)
    found.watched[parent] = watched or ''
    if not status and not allow_missing_parents then
      found.unknown = parent
    elseif status == 'completed' then
      if has_result(parent) then table.insert(found.reading, parent) end
    elseif not is_lost and (found.rank == 0 or not is_final(status)) then
      table.insert(found.waiting, parent)
    elseif found.rank < 2 then
      found.reason = is_lost and 'parent_gone' or 'skipped'
    end
  end
  return found
end

local function add_follower_as(id, score, parents, watched)
  for _, parent in ipairs(parents) do
    redis.call('ZADD', followers_key(parent), score, id)
    if not has(watched[parent], 'f') then
      redis.call('HSET', job_key(parent), 'watched', watched[parent] .. 'f')
      leave_fast_path(parent)
    end
  end
end

local function add_follower(id, found)
  add_follower_as(id, found.rank, found.waiting, found.watched)
  add_follower_as(id, READS, found.reading, found.watched)
end
