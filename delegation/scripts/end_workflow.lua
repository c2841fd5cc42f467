-- End a workflow, and take it out of its parent's unresolved set. COMPLETED is refused while children are unresolved; the
-- others cancel them. CANCELED comes when the last child has ended: until then it is CANCELING.
-- KEYS 1 due   2 counters   3 roots   4… for the workflow, its parent, that one's parent …: record, unresolved, notes, untold
-- ARGV 1 operation id   2 ids of the workflow and its ancestors   3 state   4 result (JSON) or ''
--      5 how many unresolved ids to name   6 reason for its children   7 notes kept
-- Answer {verdict, …}: 'ended'; 'unknown'; 'refused' state; 'unresolved' count id id …
local now = redis_now()
local line = read_line(ARGV[2], 4)
local own = line[1]
local f = redis.call('HMGET', own.w, 'state', 'op')
if not f[1] then return {'unknown'} end
if f[2] == ARGV[1] then return {'ended'} end
if ENDED[f[1]] or f[1] == 'CANCELING' then return {'refused', f[1]} end
local count = redis.call('SCARD', own.u)
if ARGV[3] == 'COMPLETED' and count > 0 then
  local answer = {'unresolved', tostring(count)}
  for _, id in ipairs(redis.call('SRANDMEMBER', own.u, tonumber(ARGV[5]))) do answer[#answer + 1] = id end
  return answer
end
redis.call('HSET', own.w, 'op', ARGV[1])
if ARGV[4] ~= '' then redis.call('HSET', own.w, 'result', ARGV[4]) end
local at = {now = now, due = KEYS[1], counters = KEYS[2], roots = KEYS[3], patience = 0, keep = tonumber(ARGV[7])}
end_workflow(line, 1, ARGV[3], count, ARGV[6], at)
redis.call('PUBLISH', KEYS[3] .. ':' .. own.id, own.id)
return {'ended'}
