-- A record as it is, and the time it was read at.
-- KEYS 1 record
-- Answer {now, field, value, …}
local answer = redis.call('HGETALL', KEYS[1])
table.insert(answer, 1, stamp(redis_now()))
return answer
