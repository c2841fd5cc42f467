-- A workflow's step is done: its timer goes.
-- KEYS 1 workflow   2 due
-- ARGV 1 workflow id   2 timer
-- Answer 1
redis.call('HDEL', KEYS[1], ARGV[2])
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return 1
