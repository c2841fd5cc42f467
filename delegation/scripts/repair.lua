-- Recompute a workflow's unresolved set from its children, a page at a time; a last page may bring the release.
-- Nothing should ever differ: settle.lua moves both in one script. A difference is counted, and reported by the caller.
-- KEYS 1 workflow   2 unresolved   3 due   4 counters   5… the children's records
-- ARGV 1 workflow id   2 seconds until a message is sent again   3 '1' for the last page   4… the children's ids
-- Answer {number of differences, release id or ''}
local repaired = 0
for i = 5, #KEYS do
  local child = ARGV[i - 1]
  local phase = redis.call('HGET', KEYS[i], 'phase')
  if not phase or phase == 'SETTLED' or phase == 'RELEASED' then
    repaired = repaired + redis.call('SREM', KEYS[2], child)
  else
    repaired = repaired + redis.call('SADD', KEYS[2], child)
  end
end
if repaired > 0 then redis.call('HINCRBY', KEYS[4], 'children_repaired', repaired) end
if ARGV[3] ~= '1' then return {repaired, ''} end
return {repaired, resolve_parent(KEYS[1], KEYS[2], KEYS[3], KEYS[4], ARGV[1], redis_now(), tonumber(ARGV[2]))}
