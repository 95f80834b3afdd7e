-- release_unique: frees a unique key, whichever job has it or only if one job has it; that job is not affected.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 key; 5 the id of that one job, if any
-- Reply: the id of the job that had it, or '' if it was not freed
-- @include "context"
-- @include "emit"
-- @include "unique"
local key, only = ARGV[4], ARGV[5]
expect(unique_key(key), 'string')
expect(uniques_key, 'zset')
expect(lifetimes_key, 'zset')
write_even_when_full()
local owner = owner_of(key)
if only and only ~= owner then return '' end
free_key(key)
return owner or ''
