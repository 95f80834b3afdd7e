-- counter: whether a reply is a number that HINCRBY can raise and Lua prints exactly; an error is not.
local function is_counter(reply)
  return type(reply) == 'string' and #reply < 15 and string.find(reply, '^[1-9]%d*$') ~= nil
end
