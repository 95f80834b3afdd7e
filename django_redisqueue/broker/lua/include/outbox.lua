-- outbox: ids that have an outbox row, with the time of their acceptance. They stay until the rows are gone, which may
-- be later than the jobs: a row that is sent again finds its id although its job has ended and was pruned.
local outbox_key = base .. 'outbox'

-- The set of these ids (1 or more) that were accepted before.
local function accepted_before(ids)
  expect(outbox_key, 'zset')
  local accepted = {}
  for at, score in ipairs(redis.call('ZMSCORE', outbox_key, unpack(ids))) do
    if score then accepted[ids[at]] = true end
  end
  return accepted
end

local function note_accepted(ids)
  local entries = {}
  for _, id in ipairs(ids) do
    entries[#entries + 1], entries[#entries + 2] = now_text, id
  end
  if #entries > 0 then redis.call('ZADD', outbox_key, 'NX', unpack(entries)) end
end
