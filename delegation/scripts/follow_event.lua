-- What a follower has to say about a delegation that it holds; a follower that lost it says nothing.
-- KEYS 1 record   2 due   3 counters   4 follows (delegation -> end of its lease)   5 follow_owners (delegation -> follower)
-- ARGV 1 operation id   2 delegation id   3 follower   4 'heard', 'not_offered' or 'subscribed'   5 claimed state or ''
--      6 shortest time between fetches   7 seconds until a message is sent again   8 seconds to the next regular look
-- Answer 'refused', 'noted', or as record_wake says: 'woken' (send a wake message) or 'coalesced'
local now = redis_now()
local record, id, kind = KEYS[1], ARGV[2], ARGV[4]
local f = redis.call('HMGET', record, 'phase', 'follow_op', 'poll_at', 'fetched_at', 'created_at', 'cancel_at')
local op, answer = string.match(f[2] or '', '^(%S+) (%S+)$')
if op == ARGV[1] then return answer end
if redis.call('HGET', KEYS[5], id) ~= ARGV[3] then return 'refused' end
local is_over = not f[1] or f[1] == 'SETTLED' or f[1] == 'RELEASED'
if is_over or kind == 'not_offered' then
  redis.call('ZREM', KEYS[4], id)
  redis.call('HDEL', KEYS[5], id)
end
if is_over then return 'refused' end -- and the record, which may be gone, is not written to

answer = 'noted'
if kind == 'subscribed' then
  redis.call('HINCRBY', KEYS[3], 'follows_opened', 1)
  redis.call('HSET', record, 'followed', 1)
  -- Counted from the last look: an agent that ends its streams at once must not put the next one off for ever.
  local look_at = math.max(now, (seconds(f[4]) or seconds(f[5]) or now) + tonumber(ARGV[8]))
  if f[3] and seconds(f[3]) < look_at and not f[6] then -- one that is being cancelled is looked at often
    redis.call('HSET', record, 'poll_at', stamp(look_at))
    reschedule(record, KEYS[2], 'delegation:' .. id, now)
  end
elseif kind == 'not_offered' then
  redis.call('HDEL', record, 'followed')
  answer = record_wake(record, KEYS[2], id, 'no_stream', '', tonumber(ARGV[6]), tonumber(ARGV[7]), now)
else
  redis.call('HINCRBY', KEYS[3], 'follow_wakes', 1)
  answer = record_wake(record, KEYS[2], id, 'follow', ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7]), now)
end
redis.call('HSET', record, 'follow_op', ARGV[1] .. ' ' .. answer)
return answer
