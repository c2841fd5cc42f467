-- Included before end_workflow.lua and expire_workflow.lua: the one place that ends a workflow with ``count`` unresolved
-- children.
local function end_workflow(workflow, due, id, state, count, reason, now)
  if state == 'CANCELED' and count > 0 then
    state = 'CANCELING'
  else
    redis.call('HSET', workflow, 'ended_at', stamp(now), 'cleanup_at', stamp(now))
  end
  redis.call('HSET', workflow, 'state', state)
  redis.call('HDEL', workflow, 'expire_at')
  if state ~= 'COMPLETED' then
    -- A completed workflow's last continuation is still owed to it; another's is withdrawn.
    redis.call('HDEL', workflow, 'publish_at', 'then')
    if count > 0 then redis.call('HSET', workflow, 'cancel_at', stamp(now), 'cancel_reason', reason) end
  end
  reschedule_workflow(workflow, due, id)
end
