-- plain: most runs are a job's first, and their end concerns nobody but the queue. claim notes such a run in its
-- child's list as '<call>:<id> <bytes of payload> <queue> <task>' (others as '<call>:<id>'), and an entry is there as
-- long as the child holds that very run: so finish can complete it without a look at the job's hash.
-- Two events of it are written by then, queued and processing. Who adds one, or makes its end concern somebody, says
-- so by be_plain_no_more().
-- @include "gathering"
local PLAIN_LEASE = '1'

-- f: status, task, payload, lease, options, seq, audit, watched
local function is_plain(id, f)
  if f[4] or f[7] or f[8] or f[6] and f[6] ~= '1' then return false end
  return not is_of_workflow(id) and string.byte(id) ~= 103  -- 'g', of a gather
end

-- By the size of the payload: what an entry says of a plain run, behind its name. Nothing of a task that no child
-- knows, whose name would not come out of it as it went in.
local function plain_facts(queue, task)
  if not string.find(task, '^%S+$') then return {} end
  return setmetatable({}, { __index = function(facts, size)
    facts[size] = ' ' .. size .. ' ' .. queue .. ' ' .. task
    return rawget(facts, size)
  end })
end

local facts_of = {}  -- by what stands behind the name
local function read_facts(rest)
  local facts = facts_of[rest]
  if not facts then
    local size, queue, task = string.match(rest, '^ (%d+) (%S+) (%S+)$')
    if not size then return nil end  -- written by somebody else
    facts = { rest = rest, size = HASH_BYTES + size, queue = queue, task = task }
    facts_of[rest] = facts
    expect_all(queue)
  end
  return facts
end

local function by_name(entries)
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
