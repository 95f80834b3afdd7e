-- skip_list: Redis keeps a small ZSET as a list and scans it for each member that comes or goes, which took a sixth of
-- its time with two busy children. One member of over 64 bytes turns it into a skip list, which it stays when the
-- member is gone.
local MANY, LONG = 32, string.rep('-', 100)
local function keep_as_skip_list(key)
  if redis.call('ZCARD', key) > MANY and redis.call('OBJECT', 'ENCODING', key) ~= 'skiplist' then
    redis.call('ZADD', key, 0, LONG)
    redis.call('ZREM', key, LONG)
  end
end
