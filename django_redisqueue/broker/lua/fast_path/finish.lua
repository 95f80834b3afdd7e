-- finish: completes first runs by their entries in the processing list (README.md), which are mostly at its head in the
-- order of their ends. Other outcomes take the slow path.
-- Arguments from `first` on: number of runs; then for each call that claimed some of them its number, how many there
-- are, and for each of them the id and the result as JSON.
-- @include "fast_path/entry"
-- @include "fast_path/workflow_runs"
-- @include "fast_path/slow_path"
local codes, unwritten = {}, 0  -- pairs of number and code, of outcomes that were not simply accepted
local function note_code(number, code)
  if code == UNWRITTEN then unwritten = unwritten + 1 end
  if code ~= 1 then codes[#codes + 1], codes[#codes + 2] = number, code end
end

-- The run that most outcomes share; those of the others by number, false for the slow path; whether the outcomes are
-- the head of the list.
local common, others, are_head = nil, {}, true
local lanes_by_number, some_have_lanes = {}, nil

local function lane_after(entry, expected)
  if not entry or string.byte(entry, #expected + 1) ~= 32 then return nil end  -- a space
  if string.find(entry, expected, 1, true) == 1 then return string.sub(entry, #expected + 2) end
end

-- Reads the entries, and for the slow path the jobs. Returns where the arguments continue.
local function read_completed(child, first)
  local args, runs, at, number = ARGV, tonumber(ARGV[first]), first + 1, 0
  if runs == 0 then return at end
  local entries, by_name, run = redis.call('LRANGE', processing_key(child), '0', text(runs - 1)), nil, nil
  while number < runs do
    local mark, last = args[at] .. ':', at + 2 * args[at + 1]
    for place = at + 2, last, 2 do
      number = number + 1
      local id, entry = args[place], entries[number]
      local expected = run and mark .. id .. run.description
      if not run or entry ~= expected then
        local lane = expected and lane_after(entry, expected)
        if not lane then
          local rest = rest_of(entry, mark .. id)
          if not rest then
            by_name, are_head = by_name or rests_by_name(entries), false
            rest = by_name[mark .. id]
          end
          local description
          if rest then description, lane = split_rest(rest) end
          run = description and parse_run(child, description)
          if not run and not slow_path().read_claim(id) then are_head = false end
          common = common or run
        end
        lanes_by_number[number], some_have_lanes = lane, some_have_lanes or lane
      end
      local is_usual = run and (not run.seq or ends_as_usual(id, run))
      if run and not is_usual and not slow_path().read_claim(id) then are_head = false end
      if not is_usual or run ~= common then others[number] = is_usual and run or false end
    end
    at = last + 2
  end
  return at
end

-- HSET replies how many fields are new: three; more if the hash had been deleted, fewer if the job was already
-- completed.
local function refusal_code(id, new, run)
  table.insert(run.writes.left, id)
  if type(new) == 'table' then return 0 end
  if new > 3 then redis.call('DEL', job_key(id)) end
  return new > 3 and 0 or 2
end

-- For outcomes later in this call that take the slow path.
local function note_completed(id, is_new)
  if not are_head then table.insert(slow_path_built.settled_ids, id) end
  if is_new and slow_path_built.claims[id] then slow_path_built.claims[id].status = 'completed' end
end

-- Jobs that have completed, each with its lane (lanes.lua).
local freed = {}
local function note_freed(id, lane)
  local at = #freed
  freed[at + 1], freed[at + 2] = id, lane
  return LANE_BYTES + #lane
end

local function complete_on_fast_path(child, first)
  local args, runs, at, number = ARGV, tonumber(ARGV[first]), first + 1, 0
  if not are_head then slow_path() end
  while number < runs do
    local last = at + 2 * args[at + 1]
    for place = at + 2, last, 2 do
      number = number + 1
      local id, result, run = args[place], args[place + 1], others[number]
      if run == nil then run = common end
      if not run then
        note_code(number, slow_path().record_outcome(child, id, FIRST_LEASE, 'completed', result, ''))
      else
        local bytes, writes = run.size + #result, run.writes
        local lane = some_have_lanes and lanes_by_number[number]
        if lane then bytes = bytes + note_freed(id, lane) end
        if #result > SHORT then bytes = bytes + run.growth end
        local new = run.seq and complete_run(id, run, bytes, result)
          or redis.pcall('HSET', job_prefix .. id, 'status', 'completed', 'finished_ms', now_text, 'bytes',
            texts[bytes] or text(bytes), 'result', result)
        if new == 3 then
          writes.bytes, writes.completed[#writes.completed + 1] = writes.bytes + bytes, id
          add_event(id, run.shared, #result <= INLINE and result or '')
        else
          note_code(number, refusal_code(id, new, run))
        end
        if slow_path_built then note_completed(id, new == 3) end
      end
    end
    at = last + 2
  end
  if next(loaded_workflows) then notify_noted(function(...) slow_path().notify(...) end) end
  if freed[1] then slow_path().free_slots(freed) end
  if runs > 0 and are_head then redis.call('LTRIM', processing_key(child), ARGV[first], '-1') end
end
