-- unique: unique keys. The STRING `unique:<key>` holds the id of the job that has the key. `uniques` lists all keys by
-- the ms when they were taken; `uniques:until`, by their end, those that have a lifetime of their own.
--   unique: of a job, four words for each of its keys: the key, a mode, and two more ('-' if the mode has none)
--     until_started, until_finished, keep_last; replace <ms to wait> <maximum ms>
--     for <ms>, once <ms> <mark>: last for their time, whatever becomes of the job (`for`: unless it is cancelled)
-- A key is never trusted: code that meets one checks the job that has it, and a key whose job is gone, has ended or is
-- past its mode is free. So no key outlives its job, even if a hash was deleted manually.
-- The job has a "u" in `watched`, so that other jobs have no extra cost. Keys of the wrong type hold nothing.
-- @include "workflow"
-- @include "steps"
local uniques_key, lifetimes_key = base .. 'uniques', base .. 'uniques:until'
local LASTS = { ['for'] = true, once = true }
local function unique_key(key) return base .. 'unique:' .. key end
local function unique_keys_of(unique) return string.gmatch(unique or '', '(%S+) (%S+) (%S+) (%S+)') end

-- The id that a key holds, and the mark next to it.
local function owner_of(key)
  local value = redis.pcall('GET', unique_key(key))
  if type(value) ~= 'string' then return nil end
  return string.match(value, '^(%S+) ?(.*)$')
end

local function is_until_started(unique, key)
  for its_key, mode in unique_keys_of(unique) do
    if its_key == key then return mode == 'until_started' end
  end
end

-- The job that has a key: its id, the mark, and its status; nil if the key is free.
local function holder_of(key)
  local owner, mark = owner_of(key)
  if not owner then return nil end
  local status, attempts, recoveries, unique, watched = unpack(
    read(owner, 'status', 'attempts', 'recoveries', 'unique', 'watched'))
  local ends_ms = redis.pcall('ZSCORE', lifetimes_key, key)
  if type(ends_ms) == 'string' then
    if tonumber(ends_ms) > now then return owner, mark, status end
    return nil
  end
  if not status or is_final(status) then return nil end
  local has_started = status == 'processing' or (integer(attempts) or 0) > 0 or (integer(recoveries) or 0) > 0
    or has_steps(watched)
  if has_started and is_until_started(unique, key) then return nil end
  return owner, mark, status
end

local function free_key(key)
  redis.call('DEL', unique_key(key))
  redis.pcall('ZREM', uniques_key, key)
  redis.pcall('ZREM', lifetimes_key, key)
end

-- Frees a few expired keys, more than one script can add, so that they do not pile up.
local function free_expired()
  local expired = redis.pcall('ZRANGEBYSCORE', lifetimes_key, '-inf', now, 'LIMIT', 0, 3)
  for _, key in ipairs(expired) do free_key(key) end
end

local function give_key(key, id, mode, ms, mark)
  redis.pcall('ZADD', uniques_key, now_text, key)
  if LASTS[mode] then
    redis.call('SET', unique_key(key), mode == 'once' and id .. ' ' .. mark or id, 'PX', ms)
    redis.pcall('ZADD', lifetimes_key, whole(now + ms), key)
  else
    redis.call('SET', unique_key(key), id)
    redis.pcall('ZREM', lifetimes_key, key)
  end
end

local function take_keys(id, unique)
  free_expired()
  for key, mode, ms, mark in unique_keys_of(unique) do give_key(key, id, mode, ms, mark) end
end

-- A job has ended: it releases the keys that it still has. A job that waited for the end of the previous one
-- (keep_last) returns the key to that one.
local function let_go(id, status)
  local unique, before = unpack(read(id, 'unique', 'before'))
  for key, mode in unique_keys_of(unique) do
    local lasts = mode == 'once' or mode == 'for' and status ~= 'cancelled'
    if not lasts and owner_of(key) == id then
      local before_status = before and read(before, 'status')[1]
      if before_status and not is_final(before_status) then
        redis.call('SET', unique_key(key), before)
      else
        free_key(key)
      end
    end
  end
end

-- Whether a job that is about to return to its queue has older arguments than the job that now has its key, or than one
-- that has run in the meantime (replace). It does not run again, because that would overwrite the newer one's work.
-- `newer` names the job that was created because this one was running. The chain is followed only through jobs that
-- were cancelled while they ran and already had a successor, so it is short.
local function is_superseded(id)
  local unique, newer = unpack(read(id, 'unique', 'newer'))
  for key, mode in unique_keys_of(unique) do
    local owner = mode == 'replace' and holder_of(key)
    if owner and owner ~= id then return true end
  end
  while newer do
    local status, after_that = unpack(read(newer, 'status', 'newer'))
    if status ~= 'cancelled' then return true end
    newer = after_that
  end
  return false
end
