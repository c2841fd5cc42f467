-- Begin a step: take the lease with a new fencing number and one of the agent's call slots, and store the intent.
-- KEYS 1 record   2 due   3 calls (running calls of the agent)   4 waiting (delegations that found no slot)   5 counters
--      6 breaker   7 rate (calls begun in this second)   8 follows   9 follow owners
-- ARGV 1 operation id   2 delegation id   3 expected version   4 lease in seconds   5 slots per agent   6 calls per second
--      7 '1' if no stream may be held meanwhile   8 number of fields   9… field/value pairs   then the counters to increment
-- Answer {verdict, version, fence, now}; of an 'open' circuit {'open', version, when to try again, now}
local now = redis_now()
local record, due, calls, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local f = redis.call('HMGET', record, 'version', 'lease_until', 'op', 'fence', 'phase')
if f[3] == ARGV[1] then return {'begun', f[1], f[4], stamp(now)} end
if f[1] ~= ARGV[3] then return {'stale', f[1] or '', '', stamp(now)} end
if (seconds(f[2]) or 0) > now then return {'held', f[1], '', stamp(now)} end
local lease = tonumber(ARGV[4])
local open_until = seconds(redis.call('HGET', KEYS[6], 'open_until'))
if open_until and now < open_until then return {'open', f[1], stamp(open_until), stamp(now)} end
redis.call('ZREMRANGEBYSCORE', calls, '-inf', stamp(now))
redis.call('ZREM', calls, ARGV[2])
local is_full = redis.call('ZCARD', calls) >= tonumber(ARGV[5])
local is_too_fast = not is_full and tonumber(redis.call('GET', KEYS[7]) or 0) >= tonumber(ARGV[6])
if is_full or is_too_fast then
  local wait = is_full and lease or 1
  if f[5] == 'SETTLED' or f[5] == 'RELEASED' then
    -- Cleaning up is never urgent: it takes no place in the line.
    redis.call('HSET', record, 'cleanup_at', stamp(now + wait))
  else
    -- A slot that becomes free calls up whoever waits longest; the timer is for a holder that died, and the only one
    -- now: a poll that is overdue would come round again at once. Who was called up in vain keeps the old place.
    redis.call('HSETNX', record, 'waits_since', string.format('%.6f', now)) -- many may come in a millisecond
    if is_full then redis.call('ZADD', waiting, redis.call('HGET', record, 'waits_since'), ARGV[2]) end
    redis.call('HSET', record, 'refetch_at', stamp(now + wait))
    local at = read_timers(record)
    if at.reply_at then redis.call('HSET', record, 'reply_at', stamp(now + wait)) end
    if at.cancel_at then
      local cancel_until = seconds(redis.call('HGET', record, 'cancel_until'))
      redis.call('HSET', record, 'cancel_at', stamp(math.min(now + wait, cancel_until or 1e15)))
    end
    redis.call('HDEL', record, 'hinted_at', 'poll_at')
    if f[5] == 'OPENED' then redis.call('HDEL', record, 'publish_at') end
  end
  reschedule(record, due, 'delegation:' .. ARGV[2], now)
  return {'busy', f[1], '', stamp(now)}
end
redis.call('ZREM', waiting, ARGV[2])
local until_at = stamp(now + lease)
redis.call('ZADD', calls, until_at, ARGV[2])
if redis.call('INCR', KEYS[7]) == 1 then redis.call('PEXPIRE', KEYS[7], 1000) end
-- One call at a time tries whether the agent is back.
if open_until then redis.call('HSET', KEYS[6], 'open_until', until_at, 'probe', ARGV[2]) end
if ARGV[7] == '1' then mark_follow(record, KEYS[8], KEYS[9], ARGV[2], false) end
local next_arg = write_fields(record, ARGV, 9, tonumber(ARGV[8]))
count_up(KEYS[5], ARGV, next_arg, #ARGV - next_arg + 1)
redis.call('HDEL', record, 'hinted_at', 'refetch_at', 'waits_since')
if f[5] == 'OPENED' then redis.call('HDEL', record, 'publish_at') end -- of a settled one it is finalize's
redis.call('HSET', record, 'op', ARGV[1], 'lease_until', until_at)
local version = redis.call('HINCRBY', record, 'version', 1)
local fence = redis.call('HINCRBY', record, 'fence', 1)
reschedule(record, due, 'delegation:' .. ARGV[2], now)
return {'begun', tostring(version), tostring(fence), stamp(now)}
