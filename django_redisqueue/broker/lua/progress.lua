-- progress: stores the progress of a running job, fenced like every write of a child.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 id; 6 lease; 7 progress JSON
-- Reply: 1 stored, 0 lease lost
-- @include "context"
-- @include "emit"
-- @include "fast_path/implied_fields"
local child, id, lease, progress = ARGV[4], ARGV[5], ARGV[6], ARGV[7]
local status, holder, held_lease, queue, task, attempts, old_seq, audit = unpack(
  read(id, 'status', 'child', 'lease', 'queue', 'task', 'attempts', 'seq', 'audit'))
if status ~= 'processing' or holder ~= child or lease_of(status, held_lease) ~= lease then return 0 end
write_even_when_full()
if not held_lease then leave_fast_path(id) end
local seq = seq_of(status, old_seq, held_lease) + 1
redis.call('HSET', job_key(id), 'progress', progress, 'seq', seq)
emit(id, 'processing', queue or 'default', task or '', child, (integer(attempts) or 0) + 1, seq, audit,
  ',"progress":' .. progress)
flush_events()
return 1
