-- A follower gives back what it holds, so that another takes it over at once; what nobody takes soon is polled again.
-- KEYS 1 follows (delegation -> end of its lease; also the channel that is told)   2 follow_owners (delegation -> follower)
--      3 followers   4 due   5… records of the delegations
-- ARGV 1 follower   2 '1' when it leaves   3 seconds in which another may take over   4… delegation ids
-- Answer how many of them are nobody's now
local now = redis_now()
local look_at = now + tonumber(ARGV[3])

local function give_back(id, record)
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZADD', KEYS[1], 'XX', 0, id)
  redis.call('HDEL', record, 'followed')
  local poll_at = seconds(redis.call('HGET', record, 'poll_at'))
  if poll_at and poll_at > look_at then
    redis.call('HSET', record, 'poll_at', stamp(look_at))
    reschedule(record, KEYS[4], 'delegation:' .. id, now)
  end
end

local free = 0
for i = 4, #ARGV do
  local owner = redis.call('HGET', KEYS[2], ARGV[i])
  if owner == ARGV[1] then give_back(ARGV[i], KEYS[i + 1]) end
  if not owner or owner == ARGV[1] then free = free + 1 end
end
if ARGV[2] == '1' then redis.call('HDEL', KEYS[3], ARGV[1]) end
if free > 0 then redis.call('PUBLISH', KEYS[1], ARGV[4]) end -- one is enough: whoever hears it claims what it can
return free
