-- A record for the finalize of one call, and whether nobody else lets that call's canvas go on right now.
-- KEYS 1 record   2 finalizing (ends by itself, should the claimant die)
-- ARGV 1 milliseconds that a claim holds
-- Answer {'1' if claimed, field, value, …}
local answer = redis.call('HGETALL', KEYS[1])
local claimed = #answer > 0 and redis.call('SET', KEYS[2], '1', 'NX', 'PX', ARGV[1])
table.insert(answer, 1, claimed and '1' or '0')
return answer
