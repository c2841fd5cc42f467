-- Somebody wants a delegation cancelled: the intent, durable before anything is asked of the agent.
-- KEYS 1 record   2 due   3 history   4 inbox   5 roots
-- ARGV 1 delegation id   2 root id   3 reason   4 seconds the agent has to confirm   5 seconds until a message is sent again
--      6 history length   7 history entry
-- Answer 'wanted', 'wanted already', 'ended' or 'unknown'
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'phase', 'cancel_at', 'deadline_at', 'lease_until')
if not f[1] then return 'unknown' end
if f[1] == 'SETTLED' or f[1] == 'RELEASED' then return 'ended' end
if f[2] then return 'wanted already' end
local until_at = math.min(now + tonumber(ARGV[4]), seconds(f[3]) or 1e15)
-- While a step is at work its end makes this due; else a message is under way.
local leased = (seconds(f[4]) or 0) > now
redis.call('HSET', KEYS[1], 'cancel_until', stamp(until_at), 'cancel_reason', ARGV[3],
  'cancel_at', stamp(leased and now or math.min(now + tonumber(ARGV[5]), until_at)))
append_history(KEYS[3], ARGV, 7, 1, now, tonumber(ARGV[6]))
redis.call('ZREM', KEYS[4], ARGV[1])
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
redis.call('PUBLISH', KEYS[5] .. ':' .. ARGV[2], ARGV[1])
return 'wanted'
