-- release_unique: frees a unique key, whichever job has it; that job is not affected.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 key
-- Reply: the id of the job that had it, or '' if it was free
-- @include "context"
-- @include "emit"
-- @include "unique"
local key = ARGV[4]
expect(unique_key(key), 'string')
expect(uniques_key, 'zset')
expect(lifetimes_key, 'zset')
write_even_when_full()
local owner = owner_of(key)
free_key(key)
return owner or ''
