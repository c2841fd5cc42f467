-- Messages for a workflow's notes up to a number were published.
-- KEYS 1 workflow   2 untold ('<number> <delegation id>', in order)   3 due
-- ARGV 1 workflow id   2 the last number   3 seconds until a message is sent again
-- Answer: how many are left
local now = redis_now()
local last = tonumber(ARGV[2])
local first = redis.call('LINDEX', KEYS[2], 0)
while first and tonumber(string.match(first, '^%d+')) <= last do
  redis.call('LPOP', KEYS[2])
  first = redis.call('LINDEX', KEYS[2], 0)
end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end -- a record that is gone must not come back as a timer
if first then redis.call('HSET', KEYS[1], 'note_at', stamp(now)) else redis.call('HDEL', KEYS[1], 'note_at') end
reschedule_workflow(KEYS[1], KEYS[3], ARGV[1])
return redis.call('LLEN', KEYS[2])
