-- A workflow's deadline has passed. An open one ends FAILED. A joining one is released as promised: its children have the
-- same deadline. A released one has had its say, and only its retention begins; but where a parent waits for it, it ends.
-- KEYS 1 due   2 counters   3 roots   4… for the workflow, its parent, that one's parent …: record, unresolved, notes, untold
-- ARGV 1 ids of the workflow and its ancestors   2 result (JSON)   3 reason for its children
--      4 seconds until a joining one is looked at again   5 notes kept
-- Answer 'ended', 'left' or 'unknown'
local now = redis_now()
local line = read_line(ARGV[1], 4)
local own = line[1]
local f = redis.call('HMGET', own.w, 'state', 'expire_at')
if not f[1] then return 'unknown' end
if not f[2] or now < seconds(f[2]) then return 'left' end
if f[1] == 'OPEN' or (f[1] == 'RELEASED' and line[2]) then
  redis.call('HSET', own.w, 'result', ARGV[2])
  local at = {now = now, due = KEYS[1], counters = KEYS[2], roots = KEYS[3], patience = 0, keep = tonumber(ARGV[5])}
  end_workflow(line, 1, 'FAILED', redis.call('SCARD', own.u), ARGV[3], at)
  redis.call('PUBLISH', KEYS[3] .. ':' .. own.id, own.id)
  return 'ended'
end
if f[1] == 'JOINING' then
  redis.call('HSET', own.w, 'expire_at', stamp(now + tonumber(ARGV[4])))
else
  redis.call('HDEL', own.w, 'expire_at')
  redis.call('HSET', own.w, 'cleanup_at', stamp(now))
end
reschedule_workflow(own.w, KEYS[1], own.id)
return 'left'
