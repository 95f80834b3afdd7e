-- event_json: what the events of a job say, but for its id (events.lua).
local function event_json(status, queue, task, child, attempt, seq, extra)
  return '{"status":"' .. status .. '","queue":"' .. queue .. '","task":"' .. task .. '","workerId":"' .. child
    .. '","attempt":' .. attempt .. ',"seq":' .. seq .. ',"timestamp":' .. now_text .. extra .. '}'
end
