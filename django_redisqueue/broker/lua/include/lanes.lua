-- lanes: everything about jobs with lanes, built on first use, because most scripts meet none. One file per part:
--   lane_names.lua what a lane is   numbers.lua numbers of limits, weights of shares   limits.lua what limits allow
--   parking.lua how a lane waits   keyed.lua its jobs   slots.lua what starts take and ends give back
--   chunk_lanes.lua how a chunk waits   pauses.lua what is paused
-- @include "place"
-- @include "skip_list"
local lanes_built
local function lanes()
  if lanes_built then return lanes_built end
-- @include "lane_names"
-- @include "numbers"
-- @include "limits"
-- @include "aging"
-- @include "parking"
-- @include "slots"
-- @include "chunk_lanes"
-- @include "keyed"
-- @include "pauses"
  lanes_built = {
    enter_lane = enter_lane, leave_lane = leave_lane, free_slots = free_slots, call_due_lanes = call_due_lanes,
    lane_named = lane_named, has_lanes = has_lanes, stride_of = stride_of, queue_pass = queue_pass,
    refresh_share = refresh_share, ready_key = ready_key, lane_key = lane_key, limit_of = limit_of, room_of = room_of,
    take = take, plan_start = plan_start, forget_plan = forget_plan, ready_score = ready_score,
    write_slots = write_slots, park = park, call_lanes = call_lanes, call_lanes_in = call_lanes_in,
    pause_of = pause_of, call_lanes_of = call_lanes_of, write_pass = write_pass, give_back_tokens = give_back_tokens,
    crowded_limit = crowded_limit, oldest_of = oldest_of, note_numbers = note_numbers, hold_rates = hold_rates,
    call_changed_lanes = call_changed_lanes, chunk_numbers = chunk_numbers, first_of_bands = first_of_bands,
    aged_instant = aged_instant, first_by_age = first_by_age,
  }
  return lanes_built
end

-- The lane of a new job, or ''.
local function expect_lane(queue, lane)
  if lane == '' then return end
  expect(queue_key(queue, 'lane:' .. string.match(lane, '^%S*')), 'zset')
  expect(queue_key(queue, 'lanes:' .. string.match(lane, '^[^| ]*')), 'zset')
  for _, name in ipairs({ 'slots', 'limits:waiting', 'limits:due', 'chunks:waiting' }) do
    expect(base .. name, 'zset')
  end
  for _, name in ipairs({ 'limits', 'limits:changed', 'limits:passes' }) do expect(base .. name, 'hash') end
end
local function note_lane(lane)
  if lane ~= '' then lanes().note_numbers(lane) end
end

-- A job with a lane is no longer processing (`lane` is the text of its hash, or nil).
local function leave_slots(id, lane)
  if lane then lanes().free_slots({ id, string.match(lane, '^%S*') }) end
end

-- Puts a job into its queue: into its lane, if it has one (`lane` is the text of its hash, or nil).
local function line_up(queue, id, priority, at_head, lane)
  if not lane then return place(queue, id, priority, at_head) end
  lanes().enter_lane(queue, id, next_score(queue, integer(priority) or 0, at_head), lane)
end
