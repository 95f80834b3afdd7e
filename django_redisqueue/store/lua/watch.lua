-- watch: somebody waits for this job to end: conclude will say so on the channel <base>done:<id>.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 id
-- Reply: the job's present status, '' when it is not known
-- @include "context"
-- @include "plain_no_more"
-- `watched` has a letter for each that its end concerns: 1 somebody waits, c it may have been asked to stop; the others
-- see followers.lua and index.lua.
local f = read(ARGV[4], 'status', 'watched')
if not f[1] then return '' end
write_even_when_full()
if not string.find(f[2] or '', '1', 1, true) then
  redis.call('HSET', job_key(ARGV[4]), 'watched', (f[2] or '') .. '1')
  be_plain_no_more(ARGV[4])
end
return f[1]
