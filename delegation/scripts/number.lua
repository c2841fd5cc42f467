-- Reserve the number of a workflow's next child. A record that is gone must not come back as one with a number only.
-- KEYS 1 workflow
-- Answer: the number, or 0 without such a workflow
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
return redis.call('HINCRBY', KEYS[1], 'children', 1)
