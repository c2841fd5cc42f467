-- Included before settle.lua and join.lua: the one place that records a release, once per round.
local function record_release(workflow, due, counters, id, now, patience)
  local round = redis.call('HINCRBY', workflow, 'round', 1)
  local release = id .. '.release.' .. round
  redis.call('HDEL', workflow, 'poisoned')
  redis.call('HSET', workflow, 'state', 'RELEASED', 'release_id', release, 'released_at', stamp(now), 'publishes', 0)
  if redis.call('HEXISTS', workflow, 'then') == 1 then
    redis.call('HSET', workflow, 'publish_at', stamp(now + patience))
    redis.call('ZADD', due, stamp(now + patience), 'workflow:' .. id)
  end
  redis.call('HINCRBY', counters, 'released', 1)
  return release
end
