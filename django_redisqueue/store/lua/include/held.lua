-- held: what a child holds, in the order in which it was claimed. An entry of its list is '<call>:<id>', and of a
-- plain run more (plain.lua).
local settled = {}  -- ids that leave it in this script

-- In one step when they are its first, as they mostly are.
local function drop_held(child)
  if #settled == 0 then return end
  local key, mine, others = held_key(child), {}, false
  for _, id in ipairs(settled) do mine[id] = true end
  local function is_mine(entry) return mine[string.match(entry, ':(%S+)')] end
  local first = redis.call('LRANGE', key, 0, #settled - 1)
  for _, entry in ipairs(first) do others = others or not is_mine(entry) end
  if #first == #settled and not others then
    redis.call('LTRIM', key, #settled, -1)
  else
    for _, entry in ipairs(redis.call('LRANGE', key, 0, -1)) do
      if is_mine(entry) then redis.call('LREM', key, 1, entry) end
    end
  end
end
