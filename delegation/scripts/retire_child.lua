-- A workflow's parent has ended and is kept no longer than its retention; so is this one, if it has ended too.
-- KEYS 1 workflow   2 due
-- ARGV 1 workflow id
-- Answer 1 when its retention will begin
local state = redis.call('HGET', KEYS[1], 'state')
if (state ~= 'COMPLETED' and state ~= 'FAILED' and state ~= 'CANCELED') or redis.call('TTL', KEYS[1]) >= 0 then return 0 end
redis.call('HSET', KEYS[1], 'cleanup_at', stamp(redis_now()))
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return 1
