-- duplicates: decides what happens to a new job if another one has its unique key. It is not created, unless newer
-- arguments would be lost. Under replace and keep_last, a job that is not running gets the newer arguments; one that is
-- running gets a successor, which takes over the key: under replace it is due after its wait, under keep_last it waits
-- for the end of the previous one.
-- @include "replace_arguments"
-- @include "pending_writes"
local REPLACES = { replace = true, keep_last = true }
local ALIAS_MS = 86400000  -- for how long a duplicate's id leads to the job, if a caller may have it
local SUCCEEDS = '3'  -- score of a follower (followers.lua)

local function expect_unique(unique)
  expect(uniques_key, 'zset')
  expect(lifetimes_key, 'zset')
  for key, mode, ms in unique_keys_of(unique) do
    assert(not (LASTS[mode] or mode == 'replace') or tonumber(ms), 'unique has a time that is not a number')
    expect(unique_key(key), 'string')
    local owner = owner_of(key)
    local status, queue = unpack(owner and read(owner, 'status', 'queue') or {})
    if status then
      expect_all(queue or 'default')
      expect(followers_key(owner), 'zset')
    end
  end
end

-- The first of a job's keys that another job has, or nil if it may take them all.
local function find_conflict(id, unique)
  for key, mode, ms, other in unique_keys_of(unique) do
    local owner, mark, status = holder_of(key)
    local is_over = REPLACES[mode] and (not status or is_final(status))  -- only the time of another mode is left
    if owner and owner ~= id and not is_over then
      return { key = key, mode = mode, ms = tonumber(ms), max_ms = tonumber(other), owner = owner, status = status,
        differs = mode == 'once' and mark ~= other }
    end
  end
end

-- Decides about a new job: a table of id, unique, queue, payload, options, lane. Returns the owner of its key, if it
-- must not be created, and whether that was sent with another mark; otherwise nil, false, and the job whose end it
-- waits for. keep_ms: how long its id leads to the owner. new.replaces_cancelled: wait for an owner told to stop.
local function admit(new, keep_ms)
  local found = find_conflict(new.id, new.unique)
  if not found then return nil, false, nil end
  -- What a parked job, or one released between two items, has done belongs to its own arguments.
  local is_underway = found.status ~= 'retrying' and has_steps(read(found.owner, 'watched')[1])
  local is_fixed = found.status == 'processing' or is_underway
    or not is_sound(read(found.owner, 'queue')[1] or 'default')
  if REPLACES[found.mode] then
    if is_fixed and found.mode == 'replace' then redis.call('HSET', job_key(found.owner), 'newer', new.id) end
    if is_fixed then return nil, false, found.mode == 'keep_last' and found.owner or nil end
    replace_arguments(found, new)
  elseif new.replaces_cancelled and found.status == 'processing' and read(found.owner, 'cancel_ms')[1] then
    return nil, false, found.owner
  end
  for key, mode, ms, mark in unique_keys_of(new.unique) do
    if mode == 'once' and key ~= found.key then give_key(key, found.owner, mode, ms, mark) end
  end
  count(new.queue, 'deduplicated_total')
  redis.call('HSET', job_key(new.id), 'alias', found.owner)
  redis.call('PEXPIRE', job_key(new.id), whole(keep_ms))
  return found.owner, found.differs, nil
end

-- Lets a job wait for the end of the previous one.
local function succeed(id, before)
  redis.call('ZADD', followers_key(before), SUCCEEDS, id)
  local watched = read(before, 'watched')[1]
  if not has(watched, 'f') then redis.call('HSET', job_key(before), 'watched', (watched or '') .. 'f') end
end
