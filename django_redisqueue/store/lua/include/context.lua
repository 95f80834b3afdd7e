-- What every script shares: KEYS[1] is the shard's meta key, the first arguments are
--   ARGV[1] now in ms, or '' to read Redis's clock (law 10)   ARGV[2] status channel
--   ARGV[3] cap of the stream, events
-- The names below mirror keys.py; a test compares the two.
local base = string.sub(KEYS[1], 1, -5)
local now, micros = tonumber(ARGV[1]), 0  -- micros: past that ms, for what is put in order by when it happened
if not now then
  local time = redis.call('TIME')
  now, micros = time[1] * 1000 + math.floor(time[2] / 1000), time[2] % 1000
end
local now_text = string.format('%.0f', now)  -- once a call: Lua formats a number each time it is used
local channel, events_cap = ARGV[2], tonumber(ARGV[3])
local events_key, milestones_key, workers_key = base .. 'events', base .. 'events:milestones', base .. 'workers'
local timer_key, control_channel = base .. 'timer', base .. 'control'
local queues_key = base .. 'queues'
local flows_key, workflows_key = base .. 'flows', base .. 'workflows'

local job_prefix = base .. 'job:'
local function job_key(id) return job_prefix .. id end
local function is_of_workflow(id) return string.byte(id) == 102 end  -- 'f', as in flow_
local function held_key(child) return base .. 'child:' .. child .. ':processing' end
local function resent_key(child) return base .. 'child:' .. child .. ':resent' end
local function queue_key(queue, list)
  if list == 'queued' then return base .. 'q:' .. queue end
  return base .. 'q:' .. queue .. ':' .. list
end

-- Lua numbers print as %.14g, which would round a score or an instant past 14 digits.
local function whole(number) return string.format('%.0f', number) end

-- A whole number out of a hash, in which a hand may have left anything: nil when it is none that prints plainly.
local function integer(value)
  local number = tonumber(value)
  return number and number > -1e14 and number < 1e14 and math.floor(number) or nil
end

-- A small number as text. Every use of a number formats it anew, and those of a batch are mostly alike.
local texts = {}
local function text(number)
  if number ~= number then number = 0 end  -- NaN can be no key
  local known = texts[number]
  if not known then
    known = whole(number)
    texts[number] = known
  end
  return known
end

-- Fields of a job. They are all nil or false when its key is gone or holds something else than a hash:
-- one bad key must not stop the others of its batch half-way.
local function read(id, ...)
  local fields = redis.pcall('HMGET', job_key(id), ...)
  return fields.err and {} or fields
end

-- Adds to a counter in a hash; the sum. One that a hand has spoilt begins anew: it must stop nobody half-way.
local function tally(key, counter, by)
  local sum = redis.pcall('HINCRBY', key, counter, by)
  if type(sum) == 'number' then return sum end
  redis.call('HSET', key, counter, by)
  return by
end

-- Counts jobs that are made; with the first ones of a queue its name becomes known.
local function count_made(queue, jobs)
  if tally(queue_key(queue, 'meta'), 'enqueued_total', jobs) == jobs then redis.pcall('SADD', queues_key, queue) end
end

-- Law 6: a full Redis refuses a script whose first write could grow; once one write has passed it
-- lets the rest through. A verb that must work then begins with this write, which only ever frees.
local function write_even_when_full() redis.call('DEL', base .. 'nothing') end

-- @include "types"
