-- entry: the entry of a run on the fast path in its child's processing list, '<call>:<id> <bytes> <queue> <task>', and
-- ' <lane>' for a job with a lane (lanes.lua). For a run of a workflow's job, '<call>:<id> @<seq><names> <bytes> ...':
-- its `seq`, and the names of its dependants, as in '@3.7.8'.
-- <bytes>: the job's eventual size without its result; '+' if a long result turns its hash into a table.
-- @include "pending_writes"
-- @include "fast_path/description"
-- @include "fast_path/implied_fields"
local UNWRITTEN = 4  -- code of an outcome: a key of the job's queue has the wrong type (outcome.lua)
local LANE_BYTES = estimate_bytes(2, 0, false) - estimate_bytes(0, 0, false)
local function growth_of(fields) return estimate_bytes(fields, 0, true) - estimate_bytes(fields, 0, false) end

local runs_by_description = {}
local function parse_run(child, description)
  local run = runs_by_description[description]
  if not run then
    local seq, names, rest = string.match(description, '^ @([23])(%S*)( .*)$')
    local size, grows, queue, task = string.match(rest or description, '^ (%d+)(%+?) (%S+) (%S+)$')
    if not size or not is_sound(queue) then return nil end  -- not an entry of ours, or the slow path must report it
    local growth = grows == '+' and growth_of(FIELDS + (seq == '3' and RELEASED or 0)) or 0
    run = { description = description, size = tonumber(size), growth = growth, writes = pending_writes(queue),
      shared = event_json('completed', queue, task, child, '1', seq == '3' and '4' or '3', '') }
    run.seq, run.names = seq, names  -- of a workflow's job
    runs_by_description[description] = run
  end
  return run
end

local function rests_by_name(entries)
  local found = {}
  for _, entry in ipairs(entries) do
    local name, rest = string.match(entry, '^(%S+)( .*)$')
    if name then found[name] = rest end
  end
  return found
end

local function rest_of(entry, name)
  if entry and string.sub(entry, 1, #name + 1) == name .. ' ' then return string.sub(entry, #name + 1) end
end
-- The description of a run, and its lane.
local function split_rest(rest)
  if string.byte(rest, 2) == 64 then return rest end  -- '@'
  local description, lane = string.match(rest, '^( %S+ %S+ %S+) ?(%S*)$')
  return description, lane ~= '' and lane or nil
end
