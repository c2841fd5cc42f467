-- Begin a step: take the lease with a new fencing number and one of the agent's call slots, and store the intent.
-- KEYS 1 record   2 due   3 calls (running calls of the agent)   4 waiting (delegations that found no slot)   5 counters
-- ARGV 1 operation id   2 delegation id   3 expected version   4 lease in seconds   5 slots per agent
--      6 number of fields   7… field/value pairs   then the counters to increment
-- Answer {verdict, version, fence, now}
local now = redis_now()
local record, due, calls, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local f = redis.call('HMGET', record, 'version', 'lease_until', 'op', 'fence', 'phase')
if f[3] == ARGV[1] then return {'begun', f[1], f[4], stamp(now)} end
if f[1] ~= ARGV[3] then return {'stale', f[1] or '', '', stamp(now)} end
if (seconds(f[2]) or 0) > now then return {'held', f[1], '', stamp(now)} end
local lease = tonumber(ARGV[4])
redis.call('ZREMRANGEBYSCORE', calls, '-inf', stamp(now))
redis.call('ZREM', calls, ARGV[2])
if redis.call('ZCARD', calls) >= tonumber(ARGV[5]) then
  if f[5] == 'SETTLED' or f[5] == 'RELEASED' then
    -- Cleaning up is never urgent: it takes no place in the line.
    redis.call('HSET', record, 'cleanup_at', stamp(now + lease))
  else
    -- A slot that becomes free calls up whoever waits longest; the timer is for a holder that died, and the only one
    -- now: a poll that is overdue would come round again at once. Who was called up in vain keeps the old place.
    redis.call('HSETNX', record, 'waits_since', string.format('%.6f', now)) -- many may come in a millisecond
    redis.call('ZADD', waiting, redis.call('HGET', record, 'waits_since'), ARGV[2])
    redis.call('HSET', record, 'refetch_at', stamp(now + lease))
    redis.call('HDEL', record, 'hinted_at', 'poll_at')
    if f[5] == 'OPENED' then redis.call('HDEL', record, 'publish_at') end
  end
  reschedule(record, due, 'delegation:' .. ARGV[2], now)
  return {'busy', f[1], '', stamp(now)}
end
redis.call('ZREM', waiting, ARGV[2])
local until_at = stamp(now + lease)
redis.call('ZADD', calls, until_at, ARGV[2])
local next_arg = write_fields(record, ARGV, 7, tonumber(ARGV[6]))
count_up(KEYS[5], ARGV, next_arg, #ARGV - next_arg + 1)
redis.call('HDEL', record, 'hinted_at', 'refetch_at', 'waits_since')
if f[5] == 'OPENED' then redis.call('HDEL', record, 'publish_at') end -- of a settled one it is finalize's
redis.call('HSET', record, 'op', ARGV[1], 'lease_until', until_at)
local version = redis.call('HINCRBY', record, 'version', 1)
local fence = redis.call('HINCRBY', record, 'fence', 1)
reschedule(record, due, 'delegation:' .. ARGV[2], now)
return {'begun', tostring(version), tostring(fence), stamp(now)}
