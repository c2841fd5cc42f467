-- Park the Celery chain behind the record: nothing is held, and whoever settles the delegation publishes finalize.
-- KEYS 1 record   2 counters
-- ARGV 1 delegation id
-- Answer 'parked', 'settled' (the outcome is known already: go on) or 'unknown'
local phase = redis.call('HGET', KEYS[1], 'phase')
if not phase then return 'unknown' end
if phase == 'SETTLED' or phase == 'RELEASED' then return 'settled' end
if redis.call('HSETNX', KEYS[1], 'parked', 1) == 1 then redis.call('HINCRBY', KEYS[2], 'parked', 1) end
return 'parked'
