-- Take due entries and push each ahead, so that no other sweeper takes it before the message had a chance.
-- The only script that computes keys: it cannot know before it looks which records are due.
-- KEYS 1 due   2 sweeper (heartbeat)
-- ARGV 1 most entries to take   2 seconds to push ahead   3 prefix of delegation records   4 prefix of workflow records
--      5 '1' when steps that call agents may be sent; otherwise only what ends something is taken, the rest comes again in 1 s
-- Answer {now, member, name of the record's phase or state, timers as 'name=value …', …}
local now = redis_now()
redis.call('SET', KEYS[2], stamp(now))
local taken = {stamp(now)}
if tonumber(ARGV[1]) <= 0 then return taken end
local ahead = stamp(now + tonumber(ARGV[2]))
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', stamp(now), 'LIMIT', 0, ARGV[1])) do
  local kind, id = string.match(member, '^(%a+):(.+)$')
  local record = (kind == 'workflow' and ARGV[4] or ARGV[3]) .. id
  local phase = redis.call('HGET', record, kind == 'workflow' and 'state' or 'phase')
  if not phase then
    redis.call('ZREM', KEYS[1], member)
  else
    local timers = {}
    local values = redis.call('HMGET', record, unpack(TIMERS))
    for i, name in ipairs(TIMERS) do
      if values[i] then timers[#timers + 1] = name .. '=' .. values[i] end
    end
    local deadline = seconds(values[2])
    local ends = kind == 'workflow' or phase == 'SETTLED' or phase == 'RELEASED' or (deadline and deadline <= now)
    if ends or ARGV[5] == '1' then
      redis.call('ZADD', KEYS[1], 'XX', ahead, member)
      taken[#taken + 1] = member
      taken[#taken + 1] = phase
      taken[#taken + 1] = table.concat(timers, ' ')
    else
      redis.call('ZADD', KEYS[1], 'XX', stamp(now + 1), member)
    end
  end
end
return taken
