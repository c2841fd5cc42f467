-- Write what a step decided, if nobody wrote in between, and end its lease.
-- KEYS 1 record   2 due   3 history   4 counters   5 calls   6 waiting   7 roots   8 breaker   9 follows   10 follow owners
--      11 inbox   12 workflow   13 notes   14 untold
-- ARGV 1 operation id   2 delegation id   3 root id   4 expected version   5 fencing number or ''   6 seconds until a message
--      is sent again   7 history length   8 whether the agent answered: '1', '0', ''   9 missed calls that open its circuit
--      10 and 11 shortest and longest time it stays open   12 note (JSON) or ''   13 notes kept   14 wakes the step had seen
--      15 shortest time between fetches   16 '1' if it should be followed   17 asked at, if it waits for a reply, or ''
--      18 number of the last reply sent   19 number of fields   20… field/value pairs   then the number of history entries
--      and they, then counters
-- Answer {verdict, version, '1' if a wake message should be sent now, '1' if somebody is to be told of a note}
local now = redis_now()
local record, due = KEYS[1], KEYS[2]
local f = redis.call('HMGET', record, 'version', 'fence', 'op', 'wakes', 'fetched_at', 'phase')
local op_that_woke = ARGV[1] .. '+'
if f[3] == ARGV[1] or f[3] == op_that_woke then return {'saved', f[1], f[3] == op_that_woke and '1' or '0', '0'} end
if f[1] ~= ARGV[4] or (ARGV[5] ~= '' and (f[2] or '0') ~= ARGV[5]) then
  -- Expiry did not wait for our call, which kept its slot; unless somebody began after us, it is still ours.
  local ended = f[6] == 'SETTLED' or f[6] == 'RELEASED'
  if ended and ARGV[5] == f[2] then end_outlived_call(record, KEYS[5], KEYS[6], due, ARGV[2], now) end
  return {'stale', f[1] or '', '0', '0'}
end
local woken = tonumber(f[4] or 0) > tonumber(ARGV[14])
local claimed, heard = unpack(woken and redis.call('HMGET', record, 'claimed', 'heard') or {})
local next_arg = write_fields(record, ARGV, 20, tonumber(ARGV[19]))
local entries = tonumber(ARGV[next_arg])
next_arg = append_history(KEYS[3], ARGV, next_arg + 1, entries, now, tonumber(ARGV[7]))
count_up(KEYS[4], ARGV, next_arg, #ARGV - next_arg + 1)
redis.call('HDEL', record, 'lease_until')
local wake_now = '0'
if woken and redis.call('HGET', record, 'phase') == 'WATCHING' then
  -- Woken while the step was at work: the answer may be older than the news, and what the step says of the last claim is.
  if claimed then redis.call('HSET', record, 'claimed', claimed) end
  redis.call('HSET', record, 'heard', heard or 'push')
  local at = math.max(now, (seconds(f[5]) or 0) + tonumber(ARGV[15]))
  if at <= now then
    wake_now = '1'
    redis.call('HSET', record, 'hinted_at', stamp(now))
    at = now + tonumber(ARGV[6])
  end
  redis.call('HSET', record, 'refetch_at', stamp(at))
end
redis.call('HSET', record, 'op', wake_now == '1' and op_that_woke or ARGV[1])
local version = redis.call('HINCRBY', record, 'version', 1)
free_slot(KEYS[5], KEYS[6], due, ARGV[2], now)
note_call(KEYS[8], ARGV[2], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), now)
mark_follow(record, KEYS[9], KEYS[10], ARGV[2], ARGV[16] == '1')
mark_inbox(record, KEYS[11], ARGV[2], ARGV[17], ARGV[18], now)
local told = tell_parent(KEYS[12], KEYS[13], KEYS[14], due, ARGV[3], ARGV[2], ARGV[12], tonumber(ARGV[13]), tonumber(ARGV[6]), now)
reschedule(record, due, 'delegation:' .. ARGV[2], now)
if entries > 0 then redis.call('PUBLISH', KEYS[7] .. ':' .. ARGV[3], ARGV[2]) end
return {'saved', tostring(version), wake_now, told and '1' or '0'}
