-- A new workflow without children; its deadline is a due entry from now on.
-- KEYS 1 workflow   2 due   3 roots
-- ARGV 1 workflow id   2 deadline in seconds from now   3 number of fields   4… field/value pairs
-- Answer 'opened', also to a repeat
local now = redis_now()
if redis.call('EXISTS', KEYS[1]) == 1 then return 'opened' end
write_fields(KEYS[1], ARGV, 4, tonumber(ARGV[3]))
local deadline = stamp(now + tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'state', 'OPEN', 'round', 0, 'children', 0, 'created_at', stamp(now), 'deadline_at', deadline,
  'expire_at', deadline)
redis.call('ZADD', KEYS[3], stamp(now), ARGV[1])
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return 'opened'
