-- event_json: the contents of a job's events, except its id (events.lua).
local function event_json(status, queue, task, child, attempt, seq, extra)
  return '{"status":"' .. status .. '","queue":"' .. queue .. '","task":"' .. task .. '","workerId":"' .. child
    .. '","attempt":' .. attempt .. ',"seq":' .. seq .. ',"timestamp":' .. now_text .. extra .. '}'
end

-- Publishes the event of a job. Returns how many clients listen.
local function publish_event(id, shared)
  return publish(channel, '{"jobId":"' .. id .. '",' .. string.sub(shared, 2))
end
