-- End a workflow. COMPLETED is refused while children are unresolved.
-- KEYS 1 workflow   2 unresolved   3 due   4 roots
-- ARGV 1 operation id   2 workflow id   3 state   4 result (JSON) or ''   5 how many unresolved ids to name
-- Answer {verdict, …}: 'ended'; 'unknown'; 'refused' state; 'unresolved' count id id …
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'state', 'op')
if not f[1] then return {'unknown'} end
if f[2] == ARGV[1] then return {'ended'} end
if f[1] == 'COMPLETED' or f[1] == 'FAILED' or f[1] == 'CANCELED' then return {'refused', f[1]} end
if ARGV[3] == 'COMPLETED' then
  local count = redis.call('SCARD', KEYS[2])
  if count > 0 then
    local answer = {'unresolved', tostring(count)}
    local some = redis.call('SRANDMEMBER', KEYS[2], tonumber(ARGV[5]))
    for _, id in ipairs(some) do answer[#answer + 1] = id end
    return answer
  end
end
redis.call('HSET', KEYS[1], 'state', ARGV[3], 'op', ARGV[1], 'ended_at', stamp(now), 'cleanup_at', stamp(now))
-- A completed workflow's last continuation is still owed to it; a failed one's is withdrawn.
if ARGV[3] ~= 'COMPLETED' then redis.call('HDEL', KEYS[1], 'publish_at', 'then') end
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'result', ARGV[4]) end
redis.call('ZADD', KEYS[3], stamp(now), 'workflow:' .. ARGV[2])
redis.call('PUBLISH', KEYS[4] .. ':' .. ARGV[2], ARGV[2])
return {'ended'}
