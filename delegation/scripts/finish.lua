-- What follows in the canvas was published and the result is stored: nothing of the delegation is left to do.
-- KEYS 1 record   2 due   3 roots   4 history   5 content   6 call   7 idempotency   8 workflow
-- ARGV 1 delegation id   2 root id   3 retention in seconds   4 '1' for a child: its workflow's end starts the retention,
--      or it does itself when it outlived its workflow
local now = redis_now()
if redis.call('HGET', KEYS[1], 'phase') ~= 'SETTLED' then return 0 end
redis.call('HSET', KEYS[1], 'phase', 'RELEASED', 'ended_at', stamp(now))
redis.call('HDEL', KEYS[1], 'publish_at', 'canvas', 'op', 'answer')
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
redis.call('EXPIRE', KEYS[6], ARGV[3])
redis.call('EXPIRE', KEYS[7], ARGV[3])
local parent = ARGV[4] == '1' and redis.call('HGET', KEYS[8], 'state')
if not (parent == 'OPEN' or parent == 'JOINING' or parent == 'RELEASED') then
  for _, key in ipairs({KEYS[1], KEYS[4], KEYS[5]}) do redis.call('EXPIRE', key, ARGV[3]) end
end
redis.call('PUBLISH', KEYS[3] .. ':' .. ARGV[2], ARGV[1])
return 1
