-- complete: the short way to the end for runs that are plain (see plain.lua) and have completed. All that is read is
-- the head of the child's list, where they mostly stand in the order in which they have ended.
-- Arguments from `first` on, two a run: '<call>:<id>' and the result as JSON.
-- @include "plain"
-- @include "full"
local plain, are_its_head = {}, true  -- by their number; and whether they are what the list begins with

local function id_in(name) return string.sub(name, string.find(name, ':', 1, true) + 1) end

-- Those that are not plain (any more) are read as settle() needs them.
local function look_at_completed(child, first, runs)
  if runs == 0 then return end
  local entries, named, facts = redis.call('LRANGE', held_key(child), 0, runs - 1), nil, nil
  for number = 1, runs do
    local name, entry = ARGV[first + 2 * number - 2], entries[number]
    if not facts or entry ~= name .. facts.rest then
      local rest = rest_of(entry, name)
      if not rest then
        named, are_its_head = named or by_name(entries), false
        rest = named[name]
      end
      facts = rest and read_facts(rest)
      if not facts then full().look(id_in(name)) end
    end
    plain[number] = facts or false
  end
end

-- HSET says how many fields are new: three for a job that was not completed, all when its hash was deleted by hand.
local function complete_plain(child, id, result, facts)
  local key, bytes = job_key(id), facts.size + #result
  local new = redis.pcall('HSET', key, 'status', 'completed', 'seq', '3', 'finished_ms', now_text, 'bytes', text(bytes),
    'result', result)
  local found = gather(facts.queue)
  found.left[#found.left + 1] = id
  if new == 5 then redis.call('DEL', key) end
  if new ~= 3 then return (new == 5 or type(new) == 'table') and 0 or 2 end
  if made and made.looked[id] then made.looked[id][1] = 'completed' end  -- for a second outcome in this call
  found.completed[#found.completed + 1] = id
  found.bytes = found.bytes + bytes
  emit(id, 'completed', facts.queue, facts.task, child, 1, 3, nil, '', 'result', result)
  return 1
end

local function complete(child, first, runs, codes)
  for number = 1, runs do
    local id, result, facts = id_in(ARGV[first + 2 * number - 2]), ARGV[first + 2 * number - 1], plain[number]
    if facts then
      codes[number] = complete_plain(child, id, result, facts)
      if not are_its_head then table.insert(full().settled, id) end
    else
      codes[number] = full().settle(child, id, PLAIN_LEASE, 'completed', result, '')
    end
  end
  if runs > 0 and are_its_head then redis.call('LTRIM', held_key(child), runs, -1) end
end
