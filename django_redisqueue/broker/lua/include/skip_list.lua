-- skip_list: Redis keeps a small ZSET as a list and scans it for each member that comes or goes, which took a sixth of
-- its time with two busy children. One member of over 64 bytes turns it into a skip list, which it remains after the
-- member is gone. A key that is empty between two calls begins as a list again, so that member is added before many
-- others. It is added at every call on a server that refuses OBJECT.
local MANY = 32
local LONG = string.rep('-', 100)
local function add_to_skip_list(key, members)  -- pairs of score and member
  if #members > 2 * MANY then  -- that one first, so that none of the others needs a scan
    if type(redis.pcall('ZADD', key, '0', LONG, unpack(members))) == 'number' then redis.call('ZREM', key, LONG) end
  elseif type(redis.pcall('ZADD', key, unpack(members))) == 'number' and redis.call('ZCARD', key) > MANY
      and redis.pcall('OBJECT', 'ENCODING', key) ~= 'skiplist' then
    redis.call('ZADD', key, '0', LONG)
    redis.call('ZREM', key, LONG)
  end
end
