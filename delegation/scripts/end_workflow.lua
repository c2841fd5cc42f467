-- End a workflow. COMPLETED is refused while children are unresolved; the others cancel them. CANCELED comes when the
-- last child has ended: until then it is CANCELING.
-- KEYS 1 workflow   2 unresolved   3 due   4 roots
-- ARGV 1 operation id   2 workflow id   3 state   4 result (JSON) or ''   5 how many unresolved ids to name
--      6 reason for its children
-- Answer {verdict, …}: 'ended'; 'unknown'; 'refused' state; 'unresolved' count id id …
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'state', 'op')
if not f[1] then return {'unknown'} end
if f[2] == ARGV[1] then return {'ended'} end
if f[1] == 'COMPLETED' or f[1] == 'FAILED' or f[1] == 'CANCELED' or f[1] == 'CANCELING' then return {'refused', f[1]} end
local count = redis.call('SCARD', KEYS[2])
if ARGV[3] == 'COMPLETED' and count > 0 then
  local answer = {'unresolved', tostring(count)}
  for _, id in ipairs(redis.call('SRANDMEMBER', KEYS[2], tonumber(ARGV[5]))) do answer[#answer + 1] = id end
  return answer
end
end_workflow(KEYS[1], KEYS[3], ARGV[2], ARGV[3], count, ARGV[6], now)
redis.call('HSET', KEYS[1], 'op', ARGV[1])
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'result', ARGV[4]) end
redis.call('PUBLISH', KEYS[4] .. ':' .. ARGV[2], ARGV[2])
return {'ended'}
