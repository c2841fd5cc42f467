-- The end of a delegation, in one script: outcome recorded, push digest gone, out of the parent's unresolved set, and
-- the parent's release recorded if that was the last child. The first terminal state wins; later ones change nothing.
-- KEYS 1 record   2 due   3 history   4 counters   5 calls   6 waiting   7 roots   8 breaker   9 follows   10 follow owners
--      11 inbox   12 workflow   13 notes   14 untold   15 content   16 unresolved   17… for the workflow's parent, that
--      one's parent …: record, unresolved, notes, untold
-- ARGV 1 operation id   2 delegation id   3 root id   4 expected version   5 fencing number or ''   6 seconds until a message
--      is sent again   7 history length   8 whether the agent answered: '1', '0', ''   9 missed calls that open its circuit
--      10 and 11 shortest and longest time it stays open   12 note (JSON) or ''   13 notes kept   14 the state it ends
--      in if it is a child, or ''   15 ids of its workflow's ancestors   16 artifacts' JSON or ''   17 number of fields
--      18… field/value pairs   then the number of history entries and they, then counters
-- Answer {verdict, '1' if parked, release id or '', '1' if somebody is to be told of a note}
local now = redis_now()
local record, due = KEYS[1], KEYS[2]
local f = redis.call('HMGET', record, 'version', 'fence', 'op', 'phase', 'parked', 'answer', 'lease_until', 'in_round')
if not f[1] then return {'stale', '0', '', '0'} end
if f[3] == ARGV[1] then return {'settled', f[5] or '0', f[6] or '', '0'} end
if f[4] == 'SETTLED' or f[4] == 'RELEASED' then
  if ARGV[5] == f[2] then end_outlived_call(record, KEYS[5], KEYS[6], due, ARGV[2], now) end
  return {'already', '0', '', '0'}
end
if f[1] ~= ARGV[4] then return {'stale', '0', '', '0'} end
if ARGV[5] ~= '' and (f[2] or '0') ~= ARGV[5] then return {'stale', '0', '', '0'} end
local next_arg = write_fields(record, ARGV, 18, tonumber(ARGV[17]))
local entries = tonumber(ARGV[next_arg])
next_arg = append_history(KEYS[3], ARGV, next_arg + 1, entries, now, tonumber(ARGV[7]))
count_up(KEYS[4], ARGV, next_arg, #ARGV - next_arg + 1)
if ARGV[16] ~= '' then redis.call('SET', KEYS[15], ARGV[16]) end
redis.call('HDEL', record, 'digest', 'poll_at', 'refetch_at', 'hinted_at', 'waits_since', 'claimed', 'heard', 'reply_at',
  'cancel_at')
redis.call('HSET', record, 'op', ARGV[1], 'phase', 'SETTLED', 'publish_at', stamp(now + tonumber(ARGV[6])))
redis.call('HINCRBY', record, 'version', 1)
if f[5] == '1' then redis.call('HINCRBY', KEYS[4], 'parked', -1) end
note_call(KEYS[8], ARGV[2], ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), now)
mark_follow(record, KEYS[9], KEYS[10], ARGV[2], false)
redis.call('ZREM', KEYS[11], ARGV[2])
local release, told, is_late = '', false, false
if ARGV[14] ~= '' then
  local patience = tonumber(ARGV[6])
  local at = {now = now, due = due, counters = KEYS[4], roots = KEYS[7], patience = patience, keep = tonumber(ARGV[13])}
  local line = read_line(ARGV[15], 17)
  table.insert(line, 1, {id = ARGV[3], w = KEYS[12], u = KEYS[16], n = KEYS[13], t = KEYS[14]})
  told = tell_parent(KEYS[12], KEYS[13], KEYS[14], due, ARGV[3], ARGV[2], ARGV[12], at.keep, patience, now)
  is_late, release = resolve_child(line, 1, ARGV[2], f[8], ARGV[14] == 'COMPLETED', at)
  if is_late then redis.call('HSET', record, 'late', 1) end
end
redis.call('HSET', record, 'answer', release)
-- Expiry does not end a call that is under way: that keeps lease and slot until its step comes to write, or they end.
local calling = ARGV[5] == '' and (seconds(f[7]) or 0) > now
if not calling then
  redis.call('HDEL', record, 'lease_until')
  free_slot(KEYS[5], KEYS[6], due, ARGV[2], now)
end
redis.call('ZREM', KEYS[6], ARGV[2])
reschedule(record, due, 'delegation:' .. ARGV[2], now)
redis.call('PUBLISH', KEYS[7] .. ':' .. ARGV[3], ARGV[2])
return {'settled', f[5] or '0', release, told and '1' or '0'}
