-- The end of a delegation, in one script: outcome recorded, push digest gone, out of the parent's unresolved set, and
-- the parent's release recorded if that was the last child. The first terminal state wins; later ones change nothing.
-- KEYS 1 record   2 due   3 history   4 counters   5 calls   6 waiting   7 roots   8 content   9 workflow   10 unresolved
-- ARGV 1 operation id   2 delegation id   3 root id   4 '1' if a child   5 expected version   6 fencing number or ''
--      7 seconds until a message is sent again   8 history length   9 artifacts' JSON or ''
--      10 number of fields   11… field/value pairs   then the number of history entries and they, then counters
-- Answer {verdict, '1' if parked, release id or ''}
local now = redis_now()
local record, due = KEYS[1], KEYS[2]
local f = redis.call('HMGET', record, 'version', 'fence', 'op', 'phase', 'parked', 'answer', 'lease_until')
if not f[1] then return {'stale', '0', ''} end
if f[3] == ARGV[1] then return {'settled', f[5] or '0', f[6] or ''} end
if f[4] == 'SETTLED' or f[4] == 'RELEASED' then
  if ARGV[6] == f[2] then end_outlived_call(record, KEYS[5], KEYS[6], due, ARGV[2], now) end
  return {'already', '0', ''}
end
if f[1] ~= ARGV[5] then return {'stale', '0', ''} end
if ARGV[6] ~= '' and (f[2] or '0') ~= ARGV[6] then return {'stale', '0', ''} end
local next_arg = write_fields(record, ARGV, 11, tonumber(ARGV[10]))
local entries = tonumber(ARGV[next_arg])
next_arg = append_history(KEYS[3], ARGV, next_arg + 1, entries, now, tonumber(ARGV[8]))
count_up(KEYS[4], ARGV, next_arg, #ARGV - next_arg + 1)
if ARGV[9] ~= '' then redis.call('SET', KEYS[8], ARGV[9]) end
redis.call('HDEL', record, 'digest', 'poll_at', 'refetch_at', 'hinted_at', 'waits_since', 'claimed',
  'heard')
redis.call('HSET', record, 'op', ARGV[1], 'phase', 'SETTLED', 'publish_at', stamp(now + tonumber(ARGV[7])))
redis.call('HINCRBY', record, 'version', 1)
if f[5] == '1' then redis.call('HINCRBY', KEYS[4], 'parked', -1) end
local release = ''
if ARGV[4] == '1' then
  redis.call('SREM', KEYS[10], ARGV[2])
  if redis.call('HGET', KEYS[9], 'state') == 'JOINING' and redis.call('SCARD', KEYS[10]) == 0 then
    release = record_release(KEYS[9], due, KEYS[4], ARGV[3], now, tonumber(ARGV[7]))
  end
end
redis.call('HSET', record, 'answer', release)
-- Expiry does not end a call that is under way: that keeps lease and slot until its step comes to write, or they end.
local calling = ARGV[6] == '' and (seconds(f[7]) or 0) > now
if not calling then
  redis.call('HDEL', record, 'lease_until')
  free_slot(KEYS[5], KEYS[6], due, ARGV[2], now)
end
redis.call('ZREM', KEYS[6], ARGV[2])
reschedule(record, due, 'delegation:' .. ARGV[2], now)
redis.call('PUBLISH', KEYS[7] .. ':' .. ARGV[3], ARGV[2])
return {'settled', f[5] or '0', release}
