-- A follower gives back what it holds, so that another takes it over at once.
-- KEYS 1 follows (delegation -> end of its lease; also the channel that is told)   2 follow_owners (delegation -> follower)
--      3 followers
-- ARGV 1 follower   2 '1' when it leaves   3… delegation ids
-- Answer how many of them are nobody's now
local free = 0
for i = 3, #ARGV do
  local owner = redis.call('HGET', KEYS[2], ARGV[i])
  if owner == ARGV[1] then
    redis.call('HDEL', KEYS[2], ARGV[i])
    redis.call('ZADD', KEYS[1], 'XX', 0, ARGV[i])
  end
  if not owner or owner == ARGV[1] then free = free + 1 end
end
if ARGV[2] == '1' then redis.call('HDEL', KEYS[3], ARGV[1]) end
if free > 0 then redis.call('PUBLISH', KEYS[1], ARGV[3]) end -- one is enough: whoever hears it claims what it can
return free
