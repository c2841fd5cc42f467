-- A follower says that it lives, and takes delegations that nobody follows, or whose follower has died.
-- KEYS 1 follows (delegation -> end of its lease, 0 = nobody's)   2 follow_owners (delegation -> follower)
--      3 followers (follower -> 'seen_at held streams operation answer…', for operators and a repeat)   4 counters
-- ARGV 1 operation id   2 follower   3 most to take   4 lease in seconds   5 delegations it holds   6 its open streams
-- Answer {mean number held by the other living followers or '-1', number taken over from others, id, id, …}
local FORGOTTEN_AFTER = 60 -- seconds of silence; the heartbeat is about one a second
local LIVES = 10
local now = redis_now()
local follows, owners, followers = KEYS[1], KEYS[2], KEYS[3]

local function words_of(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  return words
end

local known = redis.call('HGETALL', followers)
local others, held = 0, 0
for i = 1, #known, 2 do
  local words = words_of(known[i + 1])
  local silence = now - (seconds(words[1]) or 0)
  if known[i] == ARGV[2] then
    if words[4] == ARGV[1] then return {unpack(words, 5)} end
  elseif silence > FORGOTTEN_AFTER then
    redis.call('HDEL', followers, known[i])
  elseif silence <= LIVES then
    others = others + 1
    held = held + (tonumber(words[2]) or 0)
  end
end

local free = {}
if tonumber(ARGV[3]) > 0 then
  free = redis.call('ZRANGEBYSCORE', follows, '-inf', stamp(now), 'LIMIT', 0, tonumber(ARGV[3]))
end
local taken_over = 0
for _, id in ipairs(free) do
  local before = redis.call('HGET', owners, id)
  if before and before ~= ARGV[2] then taken_over = taken_over + 1 end
  redis.call('ZADD', follows, stamp(now + tonumber(ARGV[4])), id)
  redis.call('HSET', owners, id, ARGV[2])
end
if taken_over > 0 then redis.call('HINCRBY', KEYS[4], 'follows_taken_over', taken_over) end
local mean = others > 0 and string.format('%.1f', held / others) or '-1'
local answer = {mean, tostring(taken_over), unpack(free)}
local words = {stamp(now), tostring(tonumber(ARGV[5]) + #free), ARGV[6], ARGV[1], unpack(answer)}
redis.call('HSET', followers, ARGV[2], table.concat(words, ' '))
return answer
