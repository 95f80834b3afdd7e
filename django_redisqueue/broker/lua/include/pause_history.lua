-- pause_history: the newest pauses and resumptions of a queue and of its shares and limits, whoever made them.
local HISTORY = 20
local function expect_pause_history(queue) expect(queue_key(queue, 'pause_history'), 'stream') end

-- `paused`: '1' or '0'; `key`: s:<share> or a limit key, '' for the whole queue; `who`: a name, or ''.
local function remember_pause(queue, paused, key, who)
  redis.call('XADD', queue_key(queue, 'pause_history'), 'MAXLEN', HISTORY, '*',
    'at', now_text, 'paused', paused, 'key', key, 'by', who)
end
