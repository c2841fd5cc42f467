-- Note what became of a release's continuation.
-- KEYS 1 workflow   2 due   3 counters
-- ARGV 1 workflow id   2 release id   3 'published' once more, 'seen' to run, or 'poisoned': published often and never seen
--      4 seconds until it is published again
-- Answer: the number of publications, or -1 when the release is over
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'release_id', 'publish_at', 'publishes')
if f[1] ~= ARGV[2] or not f[2] then return -1 end
local member = 'workflow:' .. ARGV[1]
if ARGV[3] == 'published' then
  local publishes = redis.call('HINCRBY', KEYS[1], 'publishes', 1)
  -- Longer each time: a continuation that waits in a long queue is not lost.
  local at = stamp(now + tonumber(ARGV[4]) * 2 ^ (publishes - 1))
  redis.call('HSET', KEYS[1], 'publish_at', at)
  redis.call('ZADD', KEYS[2], at, member)
  return publishes
end
if ARGV[3] == 'poisoned' then
  redis.call('HSET', KEYS[1], 'poisoned', 1)
  redis.call('HINCRBY', KEYS[3], 'continuations_poisoned', 1)
end
redis.call('HDEL', KEYS[1], 'publish_at')
if redis.call('HEXISTS', KEYS[1], 'cleanup_at') == 0 then redis.call('ZREM', KEYS[2], member) end
return tonumber(f[3] or 0)
