-- context: what every script shares: the clock, names of keys, reading and counting, checks of types.
-- KEYS[1] is the shard's meta key; the first arguments of every script are
--   ARGV[1] now in ms, or '' to read Redis's clock (law 10)   ARGV[2] status channel
--   ARGV[3] cap of the stream, events
-- The names of keys mirror keys.py; a test compares the two.
-- @include "clock"
local base = string.sub(KEYS[1], 1, -5)
local now = tonumber(now_text)
local micros = time and time[2] % 1000 or 0  -- the microseconds beyond that ms, for scores that order by time
local channel, events_cap = ARGV[2], tonumber(ARGV[3])
local events_key = base .. 'events'
local trim_index_key = base .. 'events:milestones'
local workers_key = base .. 'workers'
local timer_key = base .. 'timer'
local control_channel = base .. 'control'
local queues_key = base .. 'queues'
local result_files_key = base .. 'result_files'
local deferred_key = base .. 'flows'
local workflows_key = base .. 'workflows'

local job_prefix = base .. 'job:'
local function job_key(id) return job_prefix .. id end
local function is_of_workflow(id) return string.byte(id) == 102 end  -- 'f', as in flow_
local function processing_key(child) return base .. 'child:' .. child .. ':processing' end
local function resent_key(child) return base .. 'child:' .. child .. ':resent' end
local function queue_key(queue, list)
  if list == 'queued' then return base .. 'q:' .. queue end
  return base .. 'q:' .. queue .. ':' .. list
end

-- Lua prints numbers as %.14g, which rounds scores and times of more than 14 digits.
local function whole(number) return string.format('%.0f', number) end

-- A whole number from a hash; nil if Lua would not print the value exactly.
local function integer(value)
  local number = tonumber(value)
  return number and number > -1e14 and number < 1e14 and math.floor(number) or nil
end

-- A small number as text, cached because those of a batch are mostly equal.
local texts = {}
local function text(number)
  if number ~= number then number = 0 end  -- NaN cannot be a key
  local known = texts[number]
  if not known then
    known = string.format('%d', number)
    texts[number] = known
  end
  return known
end

-- Fields of a job. All are nil or false if its key is gone or holds something other than a hash, because one bad key
-- must not stop its batch halfway. A key that is on another node of a cluster is not gone.
local function read(id, ...)
  local fields = redis.pcall('HMGET', job_key(id), ...)
  if not fields.err then return fields end
  return string.find(fields.err, 'WRONGTYPE', 1, true) and {} or error(fields.err)
end

-- Adds to a counter in a hash and returns the sum. A value that is not a number counts as 0, because it must not stop a
-- script halfway.
local function increment(key, counter, by)
  local sum = redis.pcall('HINCRBY', key, counter, text(by))
  if type(sum) == 'number' then return sum end
  redis.call('HSET', key, counter, by)
  return by
end

-- Counts new jobs. The first job of a queue makes its name known.
local function count_enqueued(queue, jobs)
  if increment(queue_key(queue, 'meta'), 'enqueued_total', jobs) == jobs then redis.pcall('SADD', queues_key, queue) end
end

-- Law 6: a full Redis refuses a script whose first write may use memory, but accepts all writes after one that passed.
-- Verbs that must work on a full Redis make this write first, which never uses any.
local function write_even_when_full() redis.call('DEL', base .. 'nothing') end

-- While a slot moves to another node of a cluster, looking at an absent key is an error. A script that might find all
-- keys of its first writes present looks at this one before them, so that it does not stop halfway.
local function refuse_when_moving() redis.call('EXISTS', base .. 'nothing') end

-- Wakes the timer: something is due earlier than it expects.
local function wake_timer()
  if redis.call('EXISTS', timer_key) == 0 then redis.call('LPUSH', timer_key, '1') end
end

-- The same, if a member is now the first of a ZSET of times.
local function wake_timer_if_first(key, member)
  if redis.pcall('ZRANGE', key, 0, 0)[1] == member then wake_timer() end
end

-- Publishes and returns how many clients listen. On a cluster, channels have the shard's tag and are sharded, because
-- PUBLISH counts only its own node's listeners. Redis 6.2 has no sharded channels. A user without permission for the
-- channel (from Redis 7.0 on a new one has none) must not stop a script halfway: a message is only a hint.
local is_sharded = string.sub(channel, 1, #base) == base
local function publish(name, message)
  local heard = is_sharded and redis.pcall('SPUBLISH', name, message)
  if type(heard) == 'number' then return heard end
  is_sharded = false
  heard = redis.pcall('PUBLISH', name, message)
  return type(heard) == 'number' and heard or 0
end
-- @include "types"
