-- disown: hands back what Redis says that a child holds, and the child does not: it has reported the end, but Redis
-- went back to a time before that (a crash, a failover). To the head of the queues; spends nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 only what was claimed before this instant in ms; then the ids that it does hold
-- Reply: the ids handed back (at most 100; then there may be more)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "settle"
local child, before = ARGV[4], tonumber(ARGV[5])
expect(held_key(child), 'list')
local is_known, strays = {}, {}
for at = 6, #ARGV do is_known[ARGV[at]] = true end
for _, entry in ipairs(redis.call('LRANGE', held_key(child), 0, -1)) do
  local id = string.match(entry, ':(%S+)')
  if id and not is_known[id] and (tonumber(read(id, 'started_ms')[1]) or 0) < before then
    strays[#strays + 1] = id
    look(id)
  end
  if #strays == 100 then break end
end

write_even_when_full()
local ids = {}
for at = #strays, 1, -1 do  -- newest first, so that the oldest ends up at the very head
  local stray = strays[at]
  local code = settle(child, stray, looked[stray][3], 'queued', '', '')
  if code == 1 or code == 3 then ids[#ids + 1] = stray end
end
drop_held(child)
flush()
return ids
