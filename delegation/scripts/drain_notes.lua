-- Hand a workflow's notes to one reader.
-- KEYS 1 workflow   2 notes
-- Answer {how many older ones were dropped, note, note, …}, oldest first; {} without such a workflow
if redis.call('EXISTS', KEYS[1]) == 0 then return {} end
local answer = redis.call('LRANGE', KEYS[2], 0, -1)
table.insert(answer, 1, redis.call('HGET', KEYS[1], 'notes_dropped') or '0')
redis.call('DEL', KEYS[2])
redis.call('HDEL', KEYS[1], 'notes_dropped')
return answer
