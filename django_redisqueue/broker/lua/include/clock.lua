-- clock: the time of this call, read once (law 10), in ms as text: Lua formats a number on every use, and slowly.
local time = ARGV[1] == '' and redis.call('TIME')
local now_text = time and time[1] .. string.sub('00000' .. time[2], -6, -4) or ARGV[1]
