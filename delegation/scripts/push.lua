-- A push at the door: is its token right, and does it need a message? One call per request, accepted or not.
-- KEYS 1 record   2 due   3 counters
-- ARGV 1 delegation id   2 SHA-256 of the presented token, '' if none   3 '1' if length and content type are acceptable
--      4 claimed state or ''   5 shortest time between fetches   6 seconds until a message is sent again
-- Answer 'refused', 'unacceptable', 'woken' (send a wake message) or 'coalesced' (202, no message needed)
local f = redis.call('HMGET', KEYS[1], 'digest', 'lease_until', 'hinted_at', 'fetched_at', 'phase')
-- Both sides are digests, and Lua compares interned strings by address: the time tells nothing about the token.
if not f[1] or ARGV[2] == '' or f[1] ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[3], 'pushes_rejected', 1)
  return 'refused'
end
if ARGV[3] ~= '1' then
  redis.call('HINCRBY', KEYS[3], 'pushes_rejected', 1)
  return 'unacceptable'
end
redis.call('HINCRBY', KEYS[3], 'pushes_accepted', 1)
local now = redis_now()
redis.call('HINCRBY', KEYS[1], 'wakes', 1)
redis.call('HSET', KEYS[1], 'heard', 'push')
if ARGV[4] ~= '' then redis.call('HSET', KEYS[1], 'claimed', ARGV[4]) end
-- A step at work will see the higher count when it saves; a message already under way will see this wake.
if (seconds(f[2]) or 0) > now or f[5] ~= 'WATCHING' then return 'coalesced' end
if f[3] and now < seconds(f[3]) + tonumber(ARGV[6]) then return 'coalesced' end
local soonest = (seconds(f[4]) or 0) + tonumber(ARGV[5])
local verdict = 'coalesced'
if now >= soonest then
  redis.call('HSET', KEYS[1], 'hinted_at', stamp(now))
  soonest = now + tonumber(ARGV[6])
  verdict = 'woken'
end
redis.call('HSET', KEYS[1], 'refetch_at', stamp(soonest))
reschedule(KEYS[1], KEYS[2], 'delegation:' .. ARGV[1], now)
return verdict
