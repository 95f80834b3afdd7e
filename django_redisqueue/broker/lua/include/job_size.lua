-- job_size: an estimate of a finished job's memory, with its key and its entry in the final list, as measured
-- (test_bytes.py). texts: bytes of payload, options, result and error. Redis keeps a hash in one piece until a value
-- exceeds 64 bytes.
local SHORT = 64
local function estimate_bytes(fields, texts, is_table)
  if is_table then return 675 + 52 * fields + texts end
  return 237 + 23 * fields + texts
end
