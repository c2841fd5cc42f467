-- A follower's heartbeat for what it holds: extends what is still its own, and tells what is not.
-- KEYS 1 follows (delegation -> end of its lease)   2 follow_owners (delegation -> follower)
-- ARGV 1 follower   2 lease in seconds   3… delegation ids
-- Answer the ids it lost: no longer wanted, or another's. A lease that ran out and that nobody took is still its own.
local until_at = stamp(redis_now() + tonumber(ARGV[2]))
local lost = {}
for i = 3, #ARGV do
  local owned = redis.call('HGET', KEYS[2], ARGV[i]) == ARGV[1]
  if owned and redis.call('ZSCORE', KEYS[1], ARGV[i]) then
    redis.call('ZADD', KEYS[1], 'XX', until_at, ARGV[i])
  else
    if owned then redis.call('HDEL', KEYS[2], ARGV[i]) end
    lost[#lost + 1] = ARGV[i]
  end
end
return lost
