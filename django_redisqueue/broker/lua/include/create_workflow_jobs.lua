-- create_workflow_jobs: checks and creates the jobs of enqueue_workflow.lua.
--   new: one of its workflows: id; whether it starts_now; first_job, last: where the arguments of its jobs are
-- @include "workflow_job_kinds"
-- @include "wake"
-- @include "workflow"
-- @include "workflow_end"
local JOB_FIELDS = 3  -- arguments per job

-- What only jobs with unique keys, lanes, priorities or delays need. Built on first use: creating these functions costs
-- more than ten jobs without those.
local slow_path_built
local function slow_path()
  if slow_path_built then return slow_path_built end
-- @include "end_job"
-- @include "lanes"
-- @include "duplicates"
  slow_path_built = {
    expect_unique = expect_unique, expect_lane = expect_lane, find_conflict = find_conflict, take_keys = take_keys,
    note_lane = note_lane, line_up = line_up, release_waiting = release_waiting, call_back = call_back,
  }
  return slow_path_built
end

-- Law 1: checks all types that concern the jobs of a kind, before anything of the call is written.
local function check_kind(kind)
  expect_all(kind.queue)
  if kind.options ~= '' then expect_index(kind.options) end
  if kind.unique ~= '' then slow_path().expect_unique(kind.unique) end
  if kind.lane ~= '' then slow_path().expect_lane(kind.queue, kind.lane) end
  kind.is_checked = true
end

-- The same for a workflow. Notes how many jobs wait if it starts now, and whether some have unique keys.
local function check_workflow(new)
  expect(workflow_key(new.id), 'hash')
  expect(workflow_held_key(new.id), 'list')
  local args, waiting = ARGV, 0
  for at = new.first_job, new.last, JOB_FIELDS do
    local kind = kinds[args[at + 1]]
    if not kind.is_checked then check_kind(kind) end
    if kind.unique ~= '' then new.has_unique = true end
    if kind.joins ~= '' then
      for parent in string.gmatch(kind.joins, '%S+') do expect(then_key(new.id .. parent), 'list') end
    end
    if not kind.starts then waiting = waiting + 1 end
  end
  new.waiting = waiting
end

local function keys_of_jobs(new)
  local args, keys, prefix = ARGV, {}, job_key(new.id)
  for at = new.first_job, new.last, JOB_FIELDS do keys[#keys + 1] = prefix .. args[at] end
  return keys
end

local function conflict_of(new)
  if not new.has_unique then return nil end
  for at = new.first_job, new.last, JOB_FIELDS do
    local id, unique = new.id .. ARGV[at], kinds[ARGV[at + 1]].unique
    local found = unique ~= '' and slow_path().find_conflict(id, unique)
    if found then return id .. ' ' .. found.owner .. ' ' .. found.key end
  end
end

local started = {}  -- by queue: ids of jobs that enter its list, in order

local function line_up_new(kind, id)
  if kind.lane == '' and kind.priority == '0' then
    started[kind.queue] = started[kind.queue] or {}
    table.insert(started[kind.queue], id)
  else
    slow_path().line_up(kind.queue, id, tonumber(kind.priority), false, kind.lane ~= '' and kind.lane or nil)
  end
  wake(kind.queue)
end

-- What creating most jobs does not need.
local function apply_conditions(new, kind, id, name)
  if kind.unique ~= '' then slow_path().take_keys(id, kind.unique) end
  for parent in string.gmatch(kind.joins, '%S+') do redis.call('RPUSH', then_key(new.id .. parent), name) end
  if kind.lane ~= '' then slow_path().note_lane(kind.lane) end
  if kind.options ~= '' then index(id, kind.options) end
end

local function create_job(new, key, name, kind, payload)
  local id, starts = new.id .. name, new.starts_now and kind.starts
  local status = starts and 'queued' or 'waiting'
  if kind.status ~= status then set_status(kind, status) end
  kind.fields[PAYLOAD_AT] = payload
  redis.call('HSET', key, unpack(kind.fields))
  kind.made = kind.made + 1
  if not kind.is_plain then apply_conditions(new, kind, id, name) end
  if starts then line_up_new(kind, id) end
  if kind.event then add_event(id, kind.event, #payload <= INLINE and payload or '')
  else emit_enqueued(id, status, kind.queue, kind.task, payload, kind.options, kind.priority, kind.audit) end
  if kind.is_delayed and new.starts_now then
    slow_path().release_waiting(id, { queue = kind.queue, task = kind.task, priority = kind.priority, seq = 1,
      audit = kind.audit, when = kind.when, lane = kind.lane ~= '' and kind.lane or nil })
  end
end

-- Creates those that do not exist. Returns how many.
local function create_jobs(new, keys, some_known)
  local args, created, at = ARGV, 0, new.first_job  -- a local variable is cheaper than a global one
  for n = 1, #keys do
    if not some_known or redis.call('EXISTS', keys[n]) == 0 then
      create_job(new, keys[n], args[at], kinds[args[at + 1]], args[at + 2])
      created = created + 1
    end
    at = at + JOB_FIELDS
  end
  return created
end

local function flush()
  for queue, ids in pairs(started) do redis.call('LPUSH', queue_key(queue, 'queued'), unpack(ids)) end
  count_made()
  flush_workflows(function(...) return slow_path().call_back(...) end)
  flush_events()
end
