-- workflow_state: what the parts about workflows and ended jobs share: the budget of a script, what it has read of
-- workflows (workflow.lua), and names.
-- budget: how many dependants a script may still notify; moved: how many it has handled
local MAX_NOTIFIED = 100
local loaded_workflows, budget, moved = {}, MAX_NOTIFIED, 0
local workflow_ids = {}  -- by ids of jobs; false for a job of no workflow
local noted_ids, ended_parents = {}, {}  -- notices.lua: dependants in order, and how many of its parents have ended
local function is_final(status) return status == 'completed' or status == 'failed' or status == 'cancelled' end

-- Whether `watched` has a letter.
local function has(flags, letter) return flags and string.find(flags, letter, 1, true) ~= nil end

-- The field that marks a job as having a result for its dependants, which read it from the job's own hash.
local function result_field(id) return 'r:' .. string.match(id, '%.(%d+)$') end
local function then_key(id) return job_key(id) .. ':then' end
local function followers_key(id) return job_key(id) .. ':followers' end
