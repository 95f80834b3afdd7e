-- complete: the short way to the end for runs that are plain (see plain.lua) and have completed.
-- @include "completed_first"
local codes, unwritten = {}, 0  -- number and settle code of each outcome that was not simply accepted
local function note_code(number, code)
  if code == UNWRITTEN then unwritten = unwritten + 1 end
  if code ~= 1 then codes[#codes + 1], codes[#codes + 2] = number, code end
end

-- HSET says how many fields are new: three for a job that was not completed, all when its hash was deleted by hand.
local function not_completed(id, new, facts)
  table.insert(facts.gathered.left, id)
  if new == 4 then redis.call('DEL', job_key(id)) end
  return (new == 4 or type(new) == 'table') and 0 or 2
end

-- For what comes behind it in this call.
local function note_completed(id, is_new)
  if not are_its_head then table.insert(made.settled, id) end
  if is_new and made.looked[id] then made.looked[id][1] = 'completed' end
end

local function complete(child, first)
  local args, runs, at, number = ARGV, tonumber(ARGV[first]), first + 1, 0
  if not are_its_head then full() end
  while number < runs do
    local last = at + 2 * args[at + 1]
    for place = at + 2, last, 2 do
      number = number + 1
      local id, result, facts = args[place], args[place + 1], others[number]
      if facts == nil then facts = common end
      if not facts then
        note_code(number, full().settle(child, id, FIRST_LEASE, 'completed', result, ''))
      else
        local bytes, into = facts.size + #result, facts.gathered
        if #result > SHORT then bytes = bytes + facts.growth end
        local new = redis.pcall('HSET', job_prefix .. id, 'status', 'completed', 'finished_ms', now_text, 'bytes',
          texts[bytes] or text(bytes), 'result', result)
        if new == 3 then
          into.bytes, into.completed[#into.completed + 1] = into.bytes + bytes, id
          announce(id, facts.alike, #result <= INLINE and result or '')
        else
          note_code(number, not_completed(id, new, facts))
        end
        if made then note_completed(id, new == 3) end
      end
    end
    at = last + 2
  end
  if runs > 0 and are_its_head then redis.call('LTRIM', held_key(child), runs, -1) end
end
