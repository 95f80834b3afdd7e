-- plain: most runs are a job's first, and their end concerns nobody but the queue. claim notes such a run in its
-- child's list as '<call>:<id> <bytes> <queue> <task>' (others as '<call>:<id>'), and an entry is there as
-- long as the child holds that very run: so finish can complete it without a look at the job's hash, which says neither
-- `lease` nor `seq` of it (unsaid.lua). Who adds an event to it, or makes its end concern somebody, says so by
-- be_plain_no_more().
-- @include "gathering"
-- @include "unsaid"
local UNWRITTEN = 4  -- settle code: a key of the job's queue is of a wrong type (settle.lua)

-- f: status, task, payload, options, seq; by pcall as read(), which costs more. Nothing is read of a job of a workflow
-- or a gather, whose runs are not plain, by the first letter of its id.
local function read_if_plain(id)
  if 'f' < id and id < 'h' then return {} end
  return redis.pcall('HMGET', job_prefix .. id, 'status', 'task', 'payload', 'options', 'seq')
end
local function is_plain(f) return f[1] == 'queued' and not f[5] and f[2] and f[3] end

-- What an entry says of a plain run, behind its name: the bytes that the job will take, but for its result (with a '+'
-- when a long result makes its hash a table), and where it belongs. Nothing of a task that no child knows, whose name
-- would not come out of it as it went in.
local FIELDS = 9  -- of the hash at its end, but for what most jobs do not have
local GROWTH = bytes_of(FIELDS, 0, true) - bytes_of(FIELDS, 0, false)
local function write_facts(payload, options, queue, task, child)
  if not string.find(task, '^%S+$') then return '' end
  local fields = FIELDS + (options and 1 or 0) + (queue ~= 'default' and 1 or 0)
  local texts, longest = #payload + #(options or ''), math.max(#payload, #(options or ''), #task, #child)
  local bytes = bytes_of(fields, texts, longest > SHORT) .. (longest > SHORT and '' or '+')
  return ' ' .. bytes .. ' ' .. queue .. ' ' .. task
end

local facts_of = {}  -- by what stands behind the name
local function read_facts(child, rest)
  local facts = facts_of[rest]
  if not facts then
    local size, grows, queue, task = string.match(rest, '^ (%d+)(%+?) (%S+) (%S+)$')
    if not size or not is_sound(queue) then return nil end  -- written by somebody else, or to be written later
    facts = { rest = rest, size = tonumber(size), growth = grows == '+' and GROWTH or 0, gathered = gather(queue),
      alike = alike_of('completed', queue, task, child, 1, 3, '') }
    facts_of[rest] = facts
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
