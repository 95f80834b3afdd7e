-- index: SETs of unfinished jobs by a property. A job's options name its sets ("index", separated by spaces; no value
-- of an option can look like that key), and its `watched` has an "i".
local function index_key(entry) return base .. 'index:' .. entry end
local function entries_of(options)
  local found = options and options ~= '' and string.match(options, '"index":"([^"]*)"')
  return string.gmatch(found or '', '%S+')
end
local function is_indexed(options) return options ~= '' and string.find(options, '"index":', 1, true) end

local function expect_index(options)
  if options == '' then return end
  for entry in entries_of(options) do expect(index_key(entry), 'set') end
end

-- pcall: a key of the wrong type must not stop a script halfway.
local function index(id, options)
  if options == '' then return end
  for entry in entries_of(options) do redis.pcall('SADD', index_key(entry), id) end
end

local function unindex(id)
  for entry in entries_of(redis.call('HGET', job_key(id), 'options')) do
    redis.pcall('SREM', index_key(entry), id)
  end
end

-- The part of a job's options in its first event: all of its tags, and its correlation id.
local function mirrored_options(options)
  if options == '' then return '' end
  local correlation = string.match(options, '"correlation_id":"([^"\\]*)"')
  return (string.find(options, '"tags":', 1, true) and ',"options":' .. options or '')
    .. (correlation and ',"correlationId":"' .. correlation .. '"' or '')
end
