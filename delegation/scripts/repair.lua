-- Recompute a workflow's unresolved set from its children, a page at a time; a last page may bring the release.
-- Nothing should ever differ: settle.lua moves both in one script. A difference is counted, and reported by the caller.
-- KEYS 1 due   2 counters   3 roots   4… for the workflow, its parent, that one's parent …: record, unresolved, notes, untold
--      then the children's records
-- ARGV 1 ids of the workflow and its ancestors   2 seconds until a message is sent again   3 '1' for the last page
--      4 notes kept   5… the children's ids
-- Answer {number of differences, release id or ''}
local line, first = read_line(ARGV[1], 4)
local own, repaired = line[1], 0

-- Only of a child that differs: its outcome is long, the texts of a stranger in it. The state is before them, and found so
-- in what cjson refuses, such as half a surrogate pair.
local function is_completed(record, state)
  local outcome = redis.call('HGET', record, 'outcome')
  return (outcome and string.match(outcome, '"state":"([%u_]+)"') or state) == 'COMPLETED'
end

local round = tonumber(redis.call('HGET', own.w, 'round') or 0)
for i = first, #KEYS do
  local child = ARGV[i - first + 5]
  local f = redis.call('HMGET', KEYS[i], 'phase', 'state', 'in_round')
  local is_gone = not f[1] and not f[2]
  if is_gone or f[1] == 'SETTLED' or f[1] == 'RELEASED' or (not f[1] and ENDED[f[2]]) then
    if redis.call('SISMEMBER', own.u, child) == 1 then
      leave_unresolved(own, child, f[3], is_completed(KEYS[i], f[2]))
      repaired = repaired + 1
    end
  elseif redis.call('SADD', own.u, child) == 1 then
    repaired = repaired + 1
    keep_with(own.w, own.u)
    if tonumber(f[3] or round + 1) <= round then redis.call('HINCRBY', own.w, 'late', 1) end
  end
end
if repaired > 0 then redis.call('HINCRBY', KEYS[2], 'children_repaired', repaired) end
if ARGV[3] ~= '1' then return {repaired, ''} end
local at = {due = KEYS[1], counters = KEYS[2], roots = KEYS[3], patience = tonumber(ARGV[2]), keep = tonumber(ARGV[4])}
at.now = redis_now()
return {repaired, resolve_parent(line, 1, at)}
