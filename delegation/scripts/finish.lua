-- What follows one call in its canvas was published and its result is stored. RELEASED when it is the call that opened
-- the delegation; nothing is left to do when no call that shares the delegation waits either.
-- KEYS 1 record   2 due   3 roots   4 history   5 content   6 call   7 idempotency   8 workflow   9 shares
--      10 replies
-- ARGV 1 delegation id   2 root id   3 retention in seconds   4 '1' for a child: its workflow's end starts the retention,
--      or it does itself when it outlived its workflow   5 id of a sharing call, or '' for the one that opened it
local now = redis_now()
local phase = redis.call('HGET', KEYS[1], 'phase')
if ARGV[5] ~= '' then
  if redis.call('HEXISTS', KEYS[9], ARGV[5]) == 1 then redis.call('HSET', KEYS[9], ARGV[5], '') end
  redis.call('EXPIRE', KEYS[6], ARGV[3])
elseif phase == 'SETTLED' then
  phase = 'RELEASED'
  redis.call('HSET', KEYS[1], 'phase', phase, 'ended_at', stamp(now))
  redis.call('HDEL', KEYS[1], 'canvas', 'op', 'answer')
  local parent = ARGV[4] == '1' and redis.call('HGET', KEYS[8], 'state')
  local lives = parent == 'OPEN' or parent == 'JOINING' or parent == 'RELEASED' or parent == 'CANCELING'
  if not (lives and redis.call('TTL', KEYS[8]) == -1) then -- the end of a workflow that is kept no longer was its deadline
    for _, i in ipairs({1, 4, 5, 6, 7, 9, 10}) do redis.call('EXPIRE', KEYS[i], ARGV[3]) end
  end
else
  return 0
end
local waits = phase ~= 'RELEASED'
for _, tail in ipairs(redis.call('HVALS', KEYS[9])) do waits = waits or tail ~= '' end
if not waits then redis.call('HDEL', KEYS[1], 'publish_at') end
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
redis.call('PUBLISH', KEYS[3] .. ':' .. ARGV[2], ARGV[1])
return 1
