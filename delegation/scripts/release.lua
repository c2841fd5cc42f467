-- Included before settle.lua, join.lua and repair.lua: what follows when the last child of a workflow is resolved.

-- The one place that records a release, once per round.
local function record_release(workflow, due, counters, id, now, patience)
  local round = redis.call('HINCRBY', workflow, 'round', 1)
  local release = id .. '.release.' .. round
  redis.call('HDEL', workflow, 'poisoned')
  redis.call('HSET', workflow, 'state', 'RELEASED', 'release_id', release, 'released_at', stamp(now), 'publishes', 0)
  if redis.call('HEXISTS', workflow, 'then') == 1 then
    redis.call('HSET', workflow, 'publish_at', stamp(now + patience))
    reschedule_workflow(workflow, due, id)
  end
  redis.call('HINCRBY', counters, 'released', 1)
  return release
end

-- A joining workflow is released, a cancelled one ends; the release's id, or ''.
local function resolve_parent(workflow, unresolved, due, counters, id, now, patience)
  local state = redis.call('HGET', workflow, 'state')
  if (state ~= 'JOINING' and state ~= 'CANCELING') or redis.call('SCARD', unresolved) > 0 then return '' end
  if state == 'JOINING' then return record_release(workflow, due, counters, id, now, patience) end
  redis.call('HSET', workflow, 'state', 'CANCELED', 'ended_at', stamp(now), 'cleanup_at', stamp(now))
  redis.call('HDEL', workflow, 'expire_at', 'cancel_at')
  reschedule_workflow(workflow, due, id)
  return ''
end
