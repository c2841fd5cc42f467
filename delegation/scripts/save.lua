-- Write what a step decided, if nobody wrote in between, and end its lease.
-- KEYS 1 record   2 due   3 history   4 counters   5 calls   6 waiting   7 roots
-- ARGV 1 operation id   2 delegation id   3 root id   4 expected version   5 fencing number or ''   6 wakes the step had seen
--      7 shortest time between fetches   8 seconds until a message is sent again   9 history length
--      10 number of fields   11… field/value pairs   then the number of history entries and they, then counters
-- Answer {verdict, version, '1' if a wake message should be sent now}
local now = redis_now()
local record, due = KEYS[1], KEYS[2]
local f = redis.call('HMGET', record, 'version', 'fence', 'op', 'wakes', 'fetched_at', 'phase')
local op_that_woke = ARGV[1] .. '+'
if f[3] == ARGV[1] or f[3] == op_that_woke then return {'saved', f[1], f[3] == op_that_woke and '1' or '0'} end
if f[1] ~= ARGV[4] or (ARGV[5] ~= '' and (f[2] or '0') ~= ARGV[5]) then
  -- Expiry did not wait for our call, which kept its slot; unless somebody began after us, it is still ours.
  local ended = f[6] == 'SETTLED' or f[6] == 'RELEASED'
  if ended and ARGV[5] == f[2] then end_outlived_call(record, KEYS[5], KEYS[6], due, ARGV[2], now) end
  return {'stale', f[1] or '', '0'}
end
local woken = tonumber(f[4] or 0) > tonumber(ARGV[6])
local claimed = woken and redis.call('HGET', record, 'claimed')
local next_arg = write_fields(record, ARGV, 11, tonumber(ARGV[10]))
local entries = tonumber(ARGV[next_arg])
next_arg = append_history(KEYS[3], ARGV, next_arg + 1, entries, now, tonumber(ARGV[9]))
count_up(KEYS[4], ARGV, next_arg, #ARGV - next_arg + 1)
redis.call('HDEL', record, 'lease_until')
local wake_now = '0'
if woken and redis.call('HGET', record, 'phase') == 'WATCHING' then
  -- Woken while the step was at work: the answer may be older than the news, and what the step says of the last claim is.
  if claimed then redis.call('HSET', record, 'claimed', claimed) end
  redis.call('HSET', record, 'heard', 'push')
  local at = math.max(now, (seconds(f[5]) or 0) + tonumber(ARGV[7]))
  if at <= now then
    wake_now = '1'
    redis.call('HSET', record, 'hinted_at', stamp(now))
    at = now + tonumber(ARGV[8])
  end
  redis.call('HSET', record, 'refetch_at', stamp(at))
end
redis.call('HSET', record, 'op', wake_now == '1' and op_that_woke or ARGV[1])
local version = redis.call('HINCRBY', record, 'version', 1)
free_slot(KEYS[5], KEYS[6], due, ARGV[2], now)
reschedule(record, due, 'delegation:' .. ARGV[2], now)
if entries > 0 then redis.call('PUBLISH', KEYS[7] .. ':' .. ARGV[3], ARGV[2]) end
return {'saved', tostring(version), wake_now}
