-- revoke: hands back everything that one call of a child has claimed, to the head of the queues in the
-- order it had. For a batch that the child asked for ahead and has not begun. Spends nothing.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 call number
-- Reply: how many were handed back (0 also when the call has not arrived yet)
-- @include "context"
-- @include "emit"
-- @include "place"
-- @include "conclude"
-- @include "settle"
local child, mark = ARGV[4], ARGV[5] .. ':'
expect(held_key(child), 'list')
expect(workers_key, 'zset')

local ids = {}
for _, entry in ipairs(redis.call('LRANGE', held_key(child), 0, -1)) do
  if string.sub(entry, 1, #mark) == mark then
    ids[#ids + 1] = string.match(entry, '%S+', #mark + 1)
    look(ids[#ids])
  end
end
write_even_when_full()
local released = 0
for at = #ids, 1, -1 do
  if settle(child, ids[at], looked[ids[at]][3], 'queued', '', '') == 1 then released = released + 1 end
end
drop_held(child)
flush()
return released
