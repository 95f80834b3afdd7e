-- batch: any outcomes and any claim of finish.lua, for all calls that are not a single run. Created on first use,
-- because these functions cost Redis more than a single run does.
-- Capturing a name of the enclosing function costs a search among all names captured before; a name that the enclosing
-- function captured itself is only copied. So these functions are created in two steps, one within the other.
local function finish_batch()
-- @include "events"
-- @include "wake"
-- @include "fast_path/entry"
-- @include "fast_path/claim"
return (function()
-- @include "fast_path/finish"
-- @include "claim_queues"
  local request = {
    child = ARGV[4], call = ARGV[5], mark = ARGV[5] .. ':', resent = ARGV[6] == '1',
    jobs = math.min(100, tonumber(ARGV[7])), min_priority = ARGV[8], lease_ms = tonumber(ARGV[9]),
    queues = { unpack(ARGV, 11, 10 + tonumber(ARGV[10])) },
  }
  local completed = 11 + tonumber(ARGV[10])
  expect(processing_key(request.child), 'list')
  expect(workers_key, 'zset')
  request.is_quiet = expect_workflow_keys(resent_key(request.child))
  local other_outcomes = read_completed(request.child, completed)
  for at = other_outcomes, #ARGV, 5 do slow_path().read_claim(ARGV[at]) end

  write_even_when_full()
  complete_on_fast_path(request.child, completed)
  for at = other_outcomes, #ARGV, 5 do
    local number = ARGV[completed] + (at - other_outcomes) / 5 + 1
    note_code(number, slow_path().record_outcome(request.child, unpack(ARGV, at, at + 4)))
  end
  if slow_path_built then slow_path_built.drop_settled(request.child) end
  if request.jobs == 0 and not request.resent and ARGV[completed + 1] then
    flush()
    return { codes, { tonumber(request.call), {}, {}, 0, {}, {} } }
  end
  flush_pending_writes()  -- a job that was released may be claimed again; workflows are written at the end
  request.holding = redis.call('LLEN', processing_key(request.child)) - unwritten  -- which have ended
  local claim = claim_queues(request)
  flush()
  return { codes, claim }
end)()
end
