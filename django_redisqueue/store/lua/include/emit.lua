-- emit: one transition onto the stream (the truth) and the channel (a hint), in the script that
-- makes it. `audit` thins at the source: '' or 'all', 'final', 'failed', 'none'.
-- `extra` is JSON text that begins with a comma, or ''; `name`, `value` one inline field of the
-- stream's entry. Bodies over 1 KB stay in the job's hash.
local INLINE = 1024
local AUDITED = {
  final = { completed = true, failed = true, cancelled = true },
  failed = { failed = true },
  none = {},
}

-- What follows the id is mostly the same for the jobs of a batch that come into one status: it is put
-- together when it changes.
local tails = {}
local function tail_of(status, queue, task, child, attempt, seq)
  local last = tails[status]
  if not last or last[1] ~= seq or last[2] ~= attempt or last[3] ~= task or last[4] ~= queue or last[5] ~= child then
    last = { seq, attempt, task, queue, child, '","status":"' .. status .. '","queue":"' .. queue .. '","task":"'
      .. task .. '","workerId":"' .. child .. '","attempt":' .. attempt .. ',"seq":' .. seq .. ',"timestamp":'
      .. now_text }
    tails[status] = last
  end
  return last[6]
end

-- The first of a script trims the stream for all, and hears from PUBLISH whether anybody listens at all: no client
-- can come in between, and most often there is none.
local trimmed, listeners = false, nil
local function add_entry(...)
  if trimmed then
    redis.call('XADD', events_key, '*', ...)
  else
    redis.call('XADD', events_key, 'MAXLEN', '~', events_cap, '*', ...)
    trimmed = true
  end
end

local function emit(id, status, queue, task, child, attempt, seq, audit, extra, name, value)
  local wanted = audit and AUDITED[audit]
  if wanted and not wanted[status] then return end
  local event = '{"jobId":"' .. id .. tail_of(status, queue, task, child, attempt, seq) .. (extra or '') .. '}'
  if value and #value <= INLINE then
    add_entry('event', event, name, value)
  else
    add_entry('event', event)
  end
  if listeners ~= 0 then listeners = redis.call('PUBLISH', channel, event) end
end
