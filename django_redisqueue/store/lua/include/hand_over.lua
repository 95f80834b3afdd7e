-- hand_over: gives one queued job to the child that claims, and adds it to the reply (see claim_queues.lua).
-- @include "plain"
-- @include "full"
local batch = { reply = {}, entries = {}, lost = {}, size = 0, bytes = 0, examined = 0, full = false, alone = false }

-- What the jobs of a batch mostly share, put together when it changes.
local kind = {}
local function kind_of(queue, task)
  if kind.task ~= task or kind.queue ~= queue then
    kind = { queue = queue, task = task, head = queue .. ' 1 0 0 ' .. task, facts = plain_facts(queue, task) }
  end
  return kind
end

local function add_to_reply(id, payload, head, options)
  local reply, n = batch.reply, 4 * batch.size
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, payload, head, options
  batch.size, batch.bytes = batch.size + 1, batch.bytes + #payload
end

local function head_of(queue, lease, attempts, recoveries, task)
  return queue .. ' ' .. lease .. ' ' .. attempts .. ' ' .. (recoveries or 0) .. ' ' .. task
end

local function hand_over(want, queue, id, f, flow)
  local lease, seq, attempts = (tonumber(f[4]) or 0) + 1, (tonumber(f[6]) or 1) + 1, tonumber(f.attempts) or 0
  local task, payload = f[2] or '', f[3] or ''  -- of a corrupt hash: for the child to fail it
  local shared = kind_of(queue, task)
  redis.call('HSET', job_key(id), 'status', 'processing', 'child', want.child, 'lease', text(lease),
    'started_ms', now_text, 'seq', text(seq))
  if flow then full().flow_move(id, 'queued', 'processing') end
  emit(id, 'processing', queue, task, want.child, attempts + 1, seq, f[7])
  batch.entries[batch.size + 1] = want.call .. ':' .. id .. (is_plain(id, f) and shared.facts[#payload] or '')
  add_to_reply(id, payload, f[4] and head_of(queue, lease, attempts, f.recoveries, task) or shared.head, f[5] or '')
end
