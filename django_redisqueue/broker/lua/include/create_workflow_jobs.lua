-- create_workflow_jobs: checks and creates the jobs of enqueue_workflow.lua.
--   new: one of its workflows: id; whether it starts_now; first_job, last: where the arguments of its jobs are
-- @include "new_workflow_job"
-- @include "wake"
-- @include "workflow"
-- @include "workflow_end"
local JOB_FIELDS = 15  -- arguments a job

-- What only jobs with unique keys, lanes, priorities or delays need. Built on first use: creating these functions costs
-- more than ten jobs without.
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

-- Whether a job of a workflow that starts now goes into its queue at once.
local function starts_at_once(at) return ARGV[at + 8] == '0' and ARGV[at + 6] == '' end

-- Law 1: all types that concern a workflow, before anything of the call is written. Notes how many jobs there are, how
-- many of them wait when the workflow starts now, and whether some have unique keys.
local function check_workflow(new)
  local checked_queue, waiting = nil, 0
  expect(workflow_key(new.id), 'hash')
  expect(workflow_held_key(new.id), 'list')
  for at = new.first_job, new.last, JOB_FIELDS do
    local queue, options, joins, unique, lane = ARGV[at + 1], ARGV[at + 4], unpack(ARGV, at + 12, at + 14)
    if queue ~= checked_queue then expect_all(queue) end
    checked_queue = queue
    if options ~= '' then expect_index(options) end
    if unique ~= '' then
      slow_path().expect_unique(unique)
      new.has_unique = true
    end
    if lane ~= '' then slow_path().expect_lane(queue, lane) end
    if joins ~= '' then
      for parent in string.gmatch(joins, '%S+') do expect(then_key(new.id .. parent), 'list') end
    end
    if not starts_at_once(at) then waiting = waiting + 1 end
  end
  new.total, new.waiting = (new.last + 1 - new.first_job) / JOB_FIELDS, waiting
end

local function keys_of_jobs(new)
  local keys = {}
  for at = new.first_job, new.last, JOB_FIELDS do keys[#keys + 1] = job_key(ARGV[at]) end
  return keys
end

local function conflict_of(new)
  if not new.has_unique then return nil end
  for at = new.first_job, new.last, JOB_FIELDS do
    local found = ARGV[at + 13] ~= '' and slow_path().find_conflict(ARGV[at], ARGV[at + 13])
    if found then return ARGV[at] .. ' ' .. found.owner .. ' ' .. found.key end
  end
end

local made = {}  -- numbers of jobs by queue
local function create_job(new, at, key)
  local id, queue, task, _, options, priority, when, audit, waits = unpack(ARGV, at, at + 8)
  local joins, unique, lane = unpack(ARGV, at + 12, at + 14)
  local starts = new.starts_now and starts_at_once(at)
  local status = starts and 'queued' or 'waiting'
  redis.call('HSET', key, hash_of(at, status))
  made[queue] = (made[queue] or 0) + 1
  if unique ~= '' then slow_path().take_keys(id, unique) end
  if joins ~= '' then
    for parent in string.gmatch(joins, '%S+') do
      redis.call('RPUSH', then_key(new.id .. parent), string.sub(id, #new.id + 1))
    end
  end
  if lane ~= '' then slow_path().note_lane(lane) end
  if starts and lane == '' and priority == '0' then
    redis.call('LPUSH', queue_key(queue, 'queued'), id)
  elseif starts then
    slow_path().line_up(queue, id, tonumber(priority), false, lane ~= '' and lane or nil)
  end
  if starts then wake(queue) end
  if options ~= '' then index_unchecked(id, options) end
  emit_created(at, status)
  if new.starts_now and not starts and waits == '0' then
    slow_path().release_waiting(id, { queue = queue, task = task, priority = priority, seq = 1, audit = audit,
      when = when, lane = lane ~= '' and lane or nil })
  end
end

-- Creates those that do not exist. Returns how many.
local function create_jobs(new, keys, some_known)
  local created = 0
  for n, key in ipairs(keys) do
    if not some_known or redis.call('EXISTS', key) == 0 then
      create_job(new, new.first_job + JOB_FIELDS * (n - 1), key)
      created = created + 1
    end
  end
  return created
end

local function flush()
  for queue, jobs in pairs(made) do count_enqueued(queue, jobs) end
  flush_workflows(function(...) return slow_path().call_back(...) end)
  flush_events()
end
