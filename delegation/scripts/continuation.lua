-- Note what became of a release's continuation.
-- KEYS 1 workflow   2 due   3 counters
-- ARGV 1 workflow id   2 release id   3 'published' once more, 'seen' to run, or 'poisoned': published often and never seen
--      4 seconds until it is published again
-- Answer: the number of publications, or -1 when the release is over
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'release_id', 'publish_at', 'publishes')
if f[1] ~= ARGV[2] or not f[2] then return -1 end
if ARGV[3] == 'published' then
  local publishes = redis.call('HINCRBY', KEYS[1], 'publishes', 1)
  -- Longer each time: a continuation that waits in a long queue is not lost.
  redis.call('HSET', KEYS[1], 'publish_at', stamp(now + tonumber(ARGV[4]) * 2 ^ (publishes - 1)))
  reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
  return publishes
end
if ARGV[3] == 'poisoned' then
  redis.call('HSET', KEYS[1], 'poisoned', 1)
  redis.call('HINCRBY', KEYS[3], 'continuations_poisoned', 1)
end
redis.call('HDEL', KEYS[1], 'publish_at')
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return tonumber(f[3] or 0)
