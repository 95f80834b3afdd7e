-- delete_gather: deletes a gather whose files are deleted.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 key; 5 gather id
-- Reply: 1 deleted, 0 already gone
-- @include "context"
-- @include "gather_plan"
local key, id = ARGV[4], ARGV[5]
expect(closed_key, 'set')
expect(plan_key(key), 'hash')
local known_id, closed = unpack(redis.call('HMGET', plan_key(key), 'id', 'closed'))
if known_id and not (known_id == id and closed) then return 0 end
write_even_when_full()
redis.call('SREM', closed_key, key)
return redis.call('UNLINK', plan_key(key))
