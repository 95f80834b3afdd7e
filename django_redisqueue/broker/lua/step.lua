-- step: stores a value for a running job's later runs (steps.lua), fenced like every write of a child.
-- KEYS[1] meta
-- ARGV 1-3 context; 4 child; 5 id; 6 lease; 7 field; 8 value; 9 the most bytes that all fields of the job may take
-- Reply: 1 stored, 0 lease lost, -1 over the limit: nothing was stored
-- @include "context"
-- @include "fast_path/implied_fields"
-- @include "steps"
local child, id, lease, field, value, limit = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local status, holder, held_lease = unpack(read(id, 'status', 'child', 'lease'))
if status ~= 'processing' or holder ~= child or lease_of(status, held_lease) ~= lease then return 0 end
expect(steps_key(id), 'hash')
return remember(id, field, value, limit) and 1 or -1
