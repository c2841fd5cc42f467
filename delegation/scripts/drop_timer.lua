-- A workflow's step is done: its timer goes, unless it was set for something else meanwhile.
-- KEYS 1 workflow   2 due
-- ARGV 1 workflow id   2 timer   3 number of the wish to cancel its children that was heard, or ''
-- Answer 1
if ARGV[3] ~= '' and redis.call('HGET', KEYS[1], 'cancels') ~= ARGV[3] then return 1 end
redis.call('HDEL', KEYS[1], ARGV[2])
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return 1
