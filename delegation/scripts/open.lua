-- Make a delegation durable: record + child in the parent's unresolved set + due entry + what follows in the canvas.
-- KEYS 1 record   2 due   3 history   4 counters   5 roots (index of workflows and lone delegations)
--      6 call (Celery id -> delegation id)   7 idempotency (id + arguments digest)   8 workflow   9 unresolved
-- ARGV 1 delegation id   2 root id   3 '1' if a child   4 call id or ''   5 arguments digest or ''
--      6 deadline in seconds from now, or ''   7 absolute deadline or ''   8 longest deadline in seconds
--      9 seconds until the message is sent again   10 seconds to wait before the start   11 history length
--      12 history entry   13 seconds that the call id of a repeat is kept   14 number of fields   15… field/value pairs
-- Answer {verdict, delegation id, now}
local now = redis_now()
local record, due = KEYS[1], KEYS[2]
-- The id is new with each call, so a record that exists was written by this very call before.
if redis.call('EXISTS', record) == 1 then return {'opened', ARGV[1], stamp(now)} end
if ARGV[4] ~= '' then
  local known = redis.call('GET', KEYS[6])
  if known then return {'existing', known, stamp(now)} end
end
if ARGV[5] ~= '' then
  local known = redis.call('HMGET', KEYS[7], 'id', 'arguments')
  if known[1] then
    if known[2] ~= ARGV[5] then return {'conflict', known[1], stamp(now)} end
    if ARGV[4] ~= '' then redis.call('SET', KEYS[6], known[1], 'EX', ARGV[13]) end
    return {'existing', known[1], stamp(now)}
  end
end
local deadline = now + tonumber(ARGV[8])
if ARGV[6] ~= '' then deadline = math.min(deadline, now + tonumber(ARGV[6])) end
if ARGV[7] ~= '' then deadline = math.min(deadline, tonumber(ARGV[7])) end
if ARGV[3] == '1' then
  local parent = redis.call('HMGET', KEYS[8], 'state', 'deadline_at', 'round', 'line')
  if not parent[1] then return {'unknown_workflow', ARGV[2], stamp(now)} end
  local closed = why_closed(parent[1], parent[2], now)
  if closed then return {'refused', closed, stamp(now)} end
  if parent[2] then deadline = math.min(deadline, tonumber(parent[2])) end
  redis.call('HSET', KEYS[8], 'state', 'OPEN')
  redis.call('HINCRBY', KEYS[8], 'opened', 1)
  redis.call('SADD', KEYS[9], ARGV[1])
  redis.call('HSET', record, 'in_round', tonumber(parent[3]) + 1)
  if parent[4] then redis.call('HSET', record, 'line', parent[4]) end
else
  redis.call('ZADD', KEYS[5], stamp(now), ARGV[2])
end
write_fields(record, ARGV, 15, tonumber(ARGV[14]))
redis.call('HSET', record, 'version', 1, 'phase', 'OPENED', 'created_at', stamp(now),
  'deadline_at', stamp(deadline))
if tonumber(ARGV[10]) > 0 then redis.call('HSET', record, 'poll_at', stamp(now + tonumber(ARGV[10])))
else redis.call('HSET', record, 'publish_at', stamp(now + tonumber(ARGV[9]))) end
if ARGV[4] ~= '' then redis.call('SET', KEYS[6], ARGV[1]) end
if ARGV[5] ~= '' then redis.call('HSET', KEYS[7], 'id', ARGV[1], 'arguments', ARGV[5]) end
append_history(KEYS[3], ARGV, 12, 1, now, tonumber(ARGV[11]))
redis.call('HINCRBY', KEYS[4], 'opened', 1)
reschedule(record, due, 'delegation:' .. ARGV[1], now)
redis.call('PUBLISH', KEYS[5] .. ':' .. ARGV[2], ARGV[1])
return {'opened', ARGV[1], stamp(now)}
