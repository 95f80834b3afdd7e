-- progress: stores how far a running job is, fenced like every write of a child.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 id; 6 lease; 7 progress JSON
-- Reply: 1 stored, 0 lease lost
-- @include "context"
-- @include "emit"
-- @include "plain_no_more"
local child, id, lease, progress = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local f = read(id, 'status', 'child', 'lease', 'queue', 'task', 'attempts', 'seq', 'audit')
if f[1] ~= 'processing' or f[2] ~= child or lease_of(f[1], f[3]) ~= lease then return 0 end
write_even_when_full()
if not f[7] then be_plain_no_more(id) end
local seq = seq_of(f[1], f[7]) + 1
redis.call('HSET', job_key(id), 'progress', progress, 'seq', seq)
emit(id, 'processing', f[4] or 'default', f[5] or '', child, (integer(f[6]) or 0) + 1, seq, f[8],
  ',"progress":' .. progress)
flush_events()
return 1
