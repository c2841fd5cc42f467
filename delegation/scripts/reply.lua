-- Keep a reply, to be sent in its turn. One with a key that was used before is the one that is kept already.
-- KEYS 1 record   2 due   3 history   4 replies (JSON, in order)   5 inbox   6 roots
-- ARGV 1 delegation id   2 root id   3 reply (JSON)   4 digest of its key   5 seconds until a message is sent again
--      6 most that may wait   7 number of the last one sent   8 history length   9 history entry
-- Answer {verdict, number}: 'kept', 'repeated', 'full', 'ended', 'canceling' or 'unknown'
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'phase', 'replies', 'reply:' .. ARGV[4], 'cancel_at')
local count = tonumber(f[2] or 0)
if not f[1] then return {'unknown', 0} end
if f[3] then return {'repeated', tonumber(f[3])} end
if f[1] == 'SETTLED' or f[1] == 'RELEASED' then return {'ended', 0} end
if f[4] then return {'canceling', 0} end
if count - tonumber(ARGV[7]) >= tonumber(ARGV[6]) then return {'full', count} end
redis.call('RPUSH', KEYS[4], ARGV[3])
-- A message is under way; where a step is at work meanwhile, its end makes this due (marks.lua).
redis.call('HSET', KEYS[1], 'replies', count + 1, 'reply:' .. ARGV[4], count + 1, 'reply_at', stamp(now + tonumber(ARGV[5])))
append_history(KEYS[3], ARGV, 9, 1, now, tonumber(ARGV[8]))
redis.call('ZREM', KEYS[5], ARGV[1])
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
redis.call('PUBLISH', KEYS[6] .. ':' .. ARGV[2], ARGV[1])
return {'kept', count + 1}
