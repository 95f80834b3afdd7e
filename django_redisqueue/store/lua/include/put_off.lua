-- put_off: ids of a final state that stay although their turn to leave it has come go behind its newest, so that the
-- next look at the oldest meets others.
local function put_off(key, ids)
  if #ids == 0 then return end
  local newest = redis.call('ZREVRANGE', key, 0, 0, 'WITHSCORES')[2]
  local score, fields = whole(math.max(now, (tonumber(newest) or 0) + 1)), {}
  for _, id in ipairs(ids) do fields[#fields + 1], fields[#fields + 2] = score, id end
  redis.call('ZADD', key, unpack(fields))
end
