-- A workflow's deadline has passed. An open one ends FAILED. A joining one is released as promised: its children have the
-- same deadline. A released one has had its say; only its retention begins.
-- KEYS 1 workflow   2 unresolved   3 due   4 roots
-- ARGV 1 workflow id   2 result (JSON)   3 reason for its children   4 seconds until a joining one is looked at again
-- Answer 'ended', 'left' or 'unknown'
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'state', 'expire_at')
if not f[1] then return 'unknown' end
if not f[2] or now < seconds(f[2]) then return 'left' end
if f[1] == 'OPEN' then
  end_workflow(KEYS[1], KEYS[3], ARGV[1], 'FAILED', redis.call('SCARD', KEYS[2]), ARGV[3], now)
  redis.call('HSET', KEYS[1], 'result', ARGV[2])
  redis.call('PUBLISH', KEYS[4] .. ':' .. ARGV[1], ARGV[1])
  return 'ended'
end
if f[1] == 'JOINING' then
  redis.call('HSET', KEYS[1], 'expire_at', stamp(now + tonumber(ARGV[4])))
else
  redis.call('HDEL', KEYS[1], 'expire_at')
  redis.call('HSET', KEYS[1], 'cleanup_at', stamp(now))
end
reschedule_workflow(KEYS[1], KEYS[3], ARGV[1])
return 'left'
