-- completed_first: the outcomes of which only what the child's list says is read: first runs that have completed.
-- Mostly they stand in it in the order in which they have ended, at its head.
-- Arguments from `first` on: how many runs; then the number of the call that claimed some of them, how many those are,
-- and of each its id and its result as JSON; then the same of another call, until it is all of them.
-- @include "plain"
-- @include "full"
-- The facts of most of them; of the others by their number, false of those that are not plain (any more); and whether
-- they are what the list begins with.
local common, others, are_its_head = nil, {}, true

-- Those that are not plain are read as settle() needs them. Returns where the arguments go on.
local function look_at_completed(child, first)
  local args, runs, at, number = ARGV, tonumber(ARGV[first]), first + 1, 0
  if runs == 0 then return at end
  local entries, named, facts = redis.call('LRANGE', held_key(child), 0, runs - 1), nil, nil
  while number < runs do
    local mark, last = args[at] .. ':', at + 2 * args[at + 1]
    for place = at + 2, last, 2 do
      number = number + 1
      local id, entry = args[place], entries[number]
      if not facts or entry ~= mark .. id .. facts.rest then
        local rest = rest_of(entry, mark .. id)
        if not rest then
          named, are_its_head = named or by_name(entries), false
          rest = named[mark .. id]
        end
        facts = rest and read_facts(child, rest)
        if not facts and not full().look(id) then are_its_head = false end
        common = common or facts
      end
      if not facts or facts ~= common then others[number] = facts or false end
    end
    at = last + 2
  end
  return at
end
