-- Messages for a workflow's notes up to a number were published.
-- KEYS 1 workflow   2 untold ('<number> <delegation id>', in order)   3 due
-- ARGV 1 workflow id   2 the last number   3 seconds until those not seen to run are told again   4 '1' if this was again
--      5… those that run, ran, or are given up
-- Answer: how many nobody has told of yet
local now = redis_now()
for i = 5, #ARGV do redis.call('LREM', KEYS[2], 1, ARGV[i]) end
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end -- a record that is gone must not come back as a timer
local told = math.max(tonumber(redis.call('HGET', KEYS[1], 'told') or 0), tonumber(ARGV[2]))
redis.call('HSET', KEYS[1], 'told', told)
redis.call('HDEL', KEYS[1], 'telling_until')
local newest = redis.call('LINDEX', KEYS[2], -1)
if not newest then
  redis.call('HDEL', KEYS[1], 'note_at', 'tells')
  reschedule_workflow(KEYS[1], KEYS[3], ARGV[1])
  return 0
end
if ARGV[4] == '1' then
  if #ARGV < 5 then redis.call('HINCRBY', KEYS[1], 'tells', 1) else redis.call('HDEL', KEYS[1], 'tells') end
end
local tells = tonumber(redis.call('HGET', KEYS[1], 'tells') or 0)
-- Longer each time: a message that waits in a long queue is not lost.
redis.call('HSET', KEYS[1], 'note_at', stamp(now + tonumber(ARGV[3]) * 2 ^ tells))
reschedule_workflow(KEYS[1], KEYS[3], ARGV[1])
return math.max(0, tonumber(string.match(newest, '^%d+')) - told)
