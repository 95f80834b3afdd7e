-- forget_result_files: removes the names of files that have been deleted.
-- KEYS[1] meta
-- ARGV 1-3 context; 4.. names (1-100)
-- Reply: how many names were recorded
-- @include "context"
expect(result_files_key, 'hash')
return redis.call('HDEL', result_files_key, unpack(ARGV, 4))
