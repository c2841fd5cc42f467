-- Take on telling of notes: one at a time, so that they are told in order, and once unless whoever tells dies.
-- KEYS 1 workflow   2 untold ('<number> <delegation id>', in order)   3 due
-- ARGV 1 workflow id   2 most to tell   3 seconds after which somebody else may   4 '1': also those that were told and
--      not seen to run
-- Answer {the last number that was told of, how often in vain, '<number> <delegation id>', …}; {} while somebody else tells
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'telling_until', 'told', 'tells', 'state')
if not f[4] or (seconds(f[1]) or 0) > now then return {} end
local answer = {f[2] or '0', f[3] or '0'}
-- The first that is new, by halving: thousands may have been told and not seen to run yet.
local first, after = 0, ARGV[4] == '1' and 0 or redis.call('LLEN', KEYS[2])
while first < after do
  local middle = math.floor((first + after) / 2)
  local number = tonumber(string.match(redis.call('LINDEX', KEYS[2], middle), '^%d+'))
  if number > tonumber(answer[1]) then after = middle else first = middle + 1 end
end
for _, note in ipairs(redis.call('LRANGE', KEYS[2], first, first + tonumber(ARGV[2]) - 1)) do answer[#answer + 1] = note end
if #answer == 2 then return {} end
local until_at = stamp(now + tonumber(ARGV[3]))
redis.call('HSET', KEYS[1], 'telling_until', until_at, 'note_at', until_at)
reschedule_workflow(KEYS[1], KEYS[3], ARGV[1])
return answer
