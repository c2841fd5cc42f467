-- Take due entries and push each ahead, so that no other sweeper takes it before the message had a chance.
-- The only script that computes keys: it cannot know before it looks which records are due.
-- KEYS 1 due   2 sweeper (heartbeat)
-- ARGV 1 most entries whose step calls an agent   2 most entries whose step ends something   3 '1' if there is leisure to
--      clean up   4 seconds to push ahead   5 prefix of delegation records   6 prefix of workflow records
-- Answer {now, member, name of the record's phase or state, timers as 'name=value …', …}
local MOST_LOOKED_AT = 1000 -- bounds the script
local LEISURE_ENDS = 60     -- seconds after which a clean-up no longer waits for leisure
local now = redis_now()
redis.call('SET', KEYS[2], stamp(now))
local room = {calls = tonumber(ARGV[1]), ends = tonumber(ARGV[2])}
local no_calls = room.calls <= 0
local taken = {stamp(now)}

-- Which room the record's step needs; nil when it can wait.
local function kind_of_step(kind, phase, timer)
  if kind == 'workflow' then return 'ends' end
  if phase == 'SETTLED' or phase == 'RELEASED' then
    if timer.publish_at and timer.publish_at <= now then return 'ends' end
    if ARGV[3] == '1' or (timer.cleanup_at and timer.cleanup_at + LEISURE_ENDS <= now) then return 'calls' end
    return nil
  end
  return timer.deadline_at and timer.deadline_at <= now and 'ends' or 'calls'
end

for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', stamp(now), 'LIMIT', 0, MOST_LOOKED_AT)) do
  if room.calls <= 0 and room.ends <= 0 then break end
  local kind, id = string.match(member, '^(%a+):(.+)$')
  local record = (kind == 'workflow' and ARGV[6] or ARGV[5]) .. id
  local phase = redis.call('HGET', record, kind == 'workflow' and 'state' or 'phase')
  if not phase then
    redis.call('ZREM', KEYS[1], member)
  else
    local timer, timers = read_timers(record)
    local needs = kind_of_step(kind, phase, timer)
    if not needs then
      redis.call('ZADD', KEYS[1], 'XX', stamp(now + 5), member)
    elseif room[needs] > 0 then
      room[needs] = room[needs] - 1
      redis.call('ZADD', KEYS[1], 'XX', stamp(now + tonumber(ARGV[4])), member)
      taken[#taken + 1] = member
      taken[#taken + 1] = phase
      taken[#taken + 1] = table.concat(timers, ' ')
    elseif no_calls then
      -- A full queue must not hide what ends something behind a thousand that have to wait.
      redis.call('ZADD', KEYS[1], 'XX', stamp(now + 1), member)
    end
  end
end
return taken
