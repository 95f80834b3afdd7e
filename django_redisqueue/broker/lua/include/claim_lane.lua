-- claim_lane: one turn of one share: its first lane is parked, or its first jobs are claimed. All limits of a lane are
-- checked before any slot is taken. A part of fast_path/slow_path.lua.
-- @include "lanes"
-- @include "claim_heads"
-- Shares to write; ids that leave `keyed`; lanes whose limits may have room; whether a job left its lane without a run,
-- in which case its end may have brought others into lanes.
local touched_shares, left_lanes, looked_at, may_have_grown

-- Equal scores are ordered by name, as in Redis, so that the size of a batch does not change the order.
local function is_before(one, other)
  if one.score ~= other.score then return one.score < other.score end
  return (one.name or '\127') < (other.name or '\127')
end
local function insert_by_score(list, item, is_all)
  local at = #list
  while at > 0 and is_before(item, list[at]) do at = at - 1 end
  if at < #list or is_all then table.insert(list, at + 1, item) end  -- else others, which were not read, may come first
end

local function read_in_order(key, high, most, make)
  local found, list = redis.pcall('ZRANGEBYSCORE', key, '-inf', high, 'WITHSCORES', 'LIMIT', 0, most), {}
  for at = 1, #found, 2 do list[#list + 1] = make(found[at], tonumber(found[at + 1])) end
  return list, #list < most
end

-- The limit or the pause that refuses a lane; otherwise how many jobs its limits allow to start now, and whether one of
-- them is a rate.
local function room_in(rules, queue, lane)
  local pause = rules.pause_of(queue, lane)
  if pause then return pause end
  local room, is_rated = math.huge, false
  for _, key in ipairs(lane.limits) do
    local limit = rules.limit_of(key)
    local here = rules.room_of(limit)
    if here < 1 then return limit end
    if here < room then room = here end
    is_rated = is_rated or limit.interval ~= nil
  end
  return nil, room, is_rated
end

-- The first jobs of a lane with their scores, and how many of them, up to `most`, come before this score. Between other
-- lanes, that is mostly one, whose score is known; Redis takes longer to print scores than to find them.
local function read_heads(key, most, score, next_lane, before)
  if next_lane then
    local ids = redis.pcall('ZRANGE', key, '0', '1')
    local second = ids[2] and redis.pcall('ZSCORE', key, ids[2])
    local is_only = not second or most == 1 or tonumber(second) >= before
    if is_only then return { ids[1], ids[1] and score, ids[2], second }, ids[1] and score < before and 1 or 0 end
  end
  local found, eligible = redis.pcall('ZRANGE', key, 0, most, 'WITHSCORES'), 0
  while eligible < most and (tonumber(found[2 * eligible + 2]) or math.huge) < before do eligible = eligible + 1 end
  return found, eligible
end

-- Claims up to `most` jobs of the first lane of a share. Returns false if the share has to wait for another call.
local function claim_from_lane(request, queue, share, most, claimed)
  local first = share.lanes[share.at]
  share.at = share.at + 1
  local rules = lanes()
  local lane, key = rules.lane_named(first.name), rules.lane_key(queue, first.name)
  local limit, room, is_rated = room_in(rules, queue, lane)
  if limit then
    batch.examined, share.changes[first.name] = batch.examined + 1, false
    rules.park(queue, lane, limit, first.score)
    looked_at[#looked_at + 1] = first.name
    return true
  end
  -- Jobs that must start at once are the first of their batch.
  if (is_rated or lane.chunk) and batch.size > 0 then return true end
  if is_rated then most = 1 end
  if lane.chunk then most = rules.chunk_numbers(lane) end
  if room < most then most = room end
  local ids, of = {}, {}
  local next_lane, before = not lane.chunk and share.lanes[share.at], share.below
  if next_lane and next_lane.score < before then before = math.max(next_lane.score, first.score + 1) end
  local read_some = share.read_heads or read_heads  -- claim_by_age.lua has its own
  local found, eligible = read_some(key, most, first.score, next_lane, before)
  for at = 1, eligible do ids[at], of[at] = found[2 * at - 1], first.name end
  local taken, run = claim_heads(request, queue, ids, of, claimed)
  if lane.chunk then batch.full = batch.size > 0 end
  if taken > 0 then redis.pcall('ZREM', key, unpack(ids, 1, taken)) end
  may_have_grown = may_have_grown or #run < taken
  for at = 1, taken do left_lanes[#left_lanes + 1] = ids[at] end
  for _, limit_key in ipairs(lane.limits) do rules.take(rules.limit_of(limit_key), run) end
  if lane.limits[1] then looked_at[#looked_at + 1] = first.name end
  share.pass = share.pass + #run * share.stride
  local score = found[2 * taken + 2]
  if taken > 0 or not score then share.changes[first.name] = score or false end
  if score and taken > 0 then
    insert_by_score(share.lanes, { name = first.name, score = tonumber(score) }, share.is_all)
  end
  return taken == #ids
end
