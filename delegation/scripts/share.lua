-- One more `delegate` call for a delegation that exists (same idempotency key): keep what follows it in its own canvas.
-- KEYS 1 record   2 due   3 shares (Celery id -> what follows, '' once that was published)   4 call
-- ARGV 1 delegation id   2 call id   3 what follows (JSON)   4 seconds until a message is sent again
--      5 retention in seconds
-- Answer 'unknown', 'waiting' (whoever settles the delegation publishes), 'settled' (publish now) or 'finished'
local now = redis_now()
local phase = redis.call('HGET', KEYS[1], 'phase')
if not phase then return 'unknown' end
redis.call('HSETNX', KEYS[3], ARGV[2], ARGV[3])
if redis.call('HGET', KEYS[3], ARGV[2]) == '' then return 'finished' end
if phase ~= 'SETTLED' and phase ~= 'RELEASED' then return 'waiting' end
redis.call('HSET', KEYS[1], 'publish_at', stamp(now + tonumber(ARGV[4])))
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
if phase == 'RELEASED' then
  redis.call('EXPIRE', KEYS[3], ARGV[5])
  redis.call('EXPIRE', KEYS[4], ARGV[5])
end
return 'settled'
