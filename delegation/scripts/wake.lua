-- Included before push.lua and follow_event.lua: the one place that records a wake.
-- ``heard`` says who brought it; ``claimed`` is the state it claims, or '' (compared with the agent's answer, never applied).
-- Returns 'woken' (send a wake message) or 'coalesced' (a step at work, or a message under way, will see it).
local function record_wake(record, due, id, heard, claimed, gap, patience, now)
  local f = redis.call('HMGET', record, 'lease_until', 'hinted_at', 'fetched_at', 'phase')
  redis.call('HINCRBY', record, 'wakes', 1)
  redis.call('HSET', record, 'heard', heard)
  if claimed ~= '' then redis.call('HSET', record, 'claimed', claimed) end
  -- A step at work will see the higher count when it saves; a message already under way will see this wake.
  if (seconds(f[1]) or 0) > now or f[4] ~= 'WATCHING' then return 'coalesced' end
  if f[2] and now < seconds(f[2]) + patience then return 'coalesced' end
  local soonest = (seconds(f[3]) or 0) + gap
  local verdict = 'coalesced'
  if now >= soonest then
    redis.call('HSET', record, 'hinted_at', stamp(now))
    soonest = now + patience
    verdict = 'woken'
  end
  redis.call('HSET', record, 'refetch_at', stamp(soonest))
  reschedule(record, due, 'delegation:' .. id, now)
  return verdict
end
