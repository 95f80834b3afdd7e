-- release_unknown: returns jobs to the head of their queues that Redis lists as held by a child although the child has
-- reported their outcomes: Redis lost that write (a crash, a failover). Spends no attempt.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 only jobs that were claimed before this time in ms; then the ids that it does hold
-- Reply: the ids returned (at most 100; then there may be more)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "outcome"
local child, before = ARGV[4], tonumber(ARGV[5])
expect(processing_key(child), 'list')
local is_known, unknown = {}, {}
for at = 6, #ARGV do is_known[ARGV[at]] = true end
for _, entry in ipairs(redis.call('LRANGE', processing_key(child), 0, -1)) do
  local id = string.match(entry, ':(%S+)')
  if id and not is_known[id] and (tonumber(read(id, 'started_ms')[1]) or 0) < before then
    unknown[#unknown + 1] = id
    read_claim(id)
  end
  if #unknown == 100 then break end
end

write_even_when_full()
local ids = {}
for at = #unknown, 1, -1 do  -- newest first, so that the oldest ends up at the very head
  local id = unknown[at]
  local code = record_outcome(child, id, claims[id].lease, 'queued', '', '')
  if code == 1 or code == 3 then ids[#ids + 1] = id end
end
drop_settled(child)
flush()
return ids
