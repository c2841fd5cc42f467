-- A new workflow without children, and a child of its parent's where it has one; its deadline is a due entry from now on.
-- KEYS 1 workflow   2 due   3 roots   4 parent   5 its unresolved   6 its child workflows
-- ARGV 1 workflow id   2 deadline in seconds from now   3 parent's id or ''   4 how deep workflows may be nested
--      5 number of fields   6… field/value pairs
-- Answer {'opened'}, also to a repeat; {'unknown'}; {'refused', the parent's state, or 'past its deadline'}; {'too deep'}
local now = redis_now()
if redis.call('EXISTS', KEYS[1]) == 1 then return {'opened'} end
local deadline = now + tonumber(ARGV[2])
if ARGV[3] ~= '' then
  local parent = redis.call('HMGET', KEYS[4], 'state', 'deadline_at', 'round', 'line')
  if not parent[1] then return {'unknown'} end
  local closed = why_closed(parent[1], parent[2], now)
  if closed then return {'refused', closed} end
  local line = parent[4] and ARGV[3] .. ' ' .. parent[4] or ARGV[3]
  local _, ancestors = string.gsub(line, '%S+', '')
  if ancestors >= tonumber(ARGV[4]) then return {'too deep'} end
  if parent[2] then deadline = math.min(deadline, tonumber(parent[2])) end
  redis.call('HSET', KEYS[1], 'line', line, 'in_round', tonumber(parent[3]) + 1)
  redis.call('HSET', KEYS[4], 'state', 'OPEN')
  redis.call('HINCRBY', KEYS[4], 'opened', 1)
  redis.call('SADD', KEYS[5], ARGV[1])
  redis.call('RPUSH', KEYS[6], ARGV[1])
  redis.call('PUBLISH', KEYS[3] .. ':' .. ARGV[3], ARGV[1])
end
write_fields(KEYS[1], ARGV, 6, tonumber(ARGV[5]))
redis.call('HSET', KEYS[1], 'state', 'OPEN', 'round', 0, 'children', 0, 'created_at', stamp(now),
  'deadline_at', stamp(deadline), 'expire_at', stamp(deadline))
redis.call('ZADD', KEYS[3], stamp(now), ARGV[1])
reschedule_workflow(KEYS[1], KEYS[2], ARGV[1])
return {'opened'}
