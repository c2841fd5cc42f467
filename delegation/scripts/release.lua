-- Included after due.lua and marks.lua before each script that resolves a child or ends a workflow: what follows for its
-- parent, and where that ends as well, for the parent's parent (law 4).
-- A line is a workflow, its parent, that one's parent and so on. ``at`` holds now, the keys due, counters and roots, the
-- patience with messages, and how many notes are kept. What happens above the first of a line nobody sends a message for:
-- it is due at once.

local ENDED = {COMPLETED = true, FAILED = true, CANCELED = true}

-- The workflows with these ids, whose keys w u n t follow one another from KEYS[first]; and the first key after them.
local function read_line(ids, first)
  local line = {}
  for id in string.gmatch(ids, '%S+') do
    line[#line + 1] = {id = id, w = KEYS[first], u = KEYS[first + 1], n = KEYS[first + 2], t = KEYS[first + 3]}
    first = first + 4
  end
  return line, first
end

-- '1' when what was joined for has come, '0' when it cannot come any more, nil while it may. Of the round's children
-- ``open`` are unresolved.
local function join_verdict(policy, opened, open, completed)
  local ended = opened - open
  local failed = ended - completed
  local quorum = tonumber(string.match(policy, '^quorum (%d+)$'))
  local come, over
  if policy == 'any' then
    come, over = ended > 0, false
  elseif policy == 'first_success' then
    come, over = completed > 0, false
  elseif policy == 'fail_fast' then
    come, over = open == 0 and failed == 0, failed > 0
  elseif quorum then
    come, over = completed >= quorum, opened - failed < quorum
  else
    come, over = open == 0, false
  end
  if come then return '1' end
  return (over or open == 0) and '0' or nil
end

-- Those of its children that are unresolved are to be cancelled: all, or those up to a round.
local function want_children_cancelled(w, reason, round, now)
  redis.call('HSET', w, 'cancel_at', stamp(now), 'cancel_reason', reason)
  if round then redis.call('HSET', w, 'cancel_round', round) else redis.call('HDEL', w, 'cancel_round') end
  redis.call('HINCRBY', w, 'cancels', 1)
end

-- The one place that records a release, once per round. The children that are left belong to the round that is over.
local function record_release(parent, at, policy, open, verdict, patience)
  local w = parent.w
  local round = redis.call('HINCRBY', w, 'round', 1)
  local release = parent.id .. '.release.' .. round
  redis.call('HDEL', w, 'poisoned')
  redis.call('HSET', w, 'state', 'RELEASED', 'release_id', release, 'released_at', stamp(at.now), 'publishes', 0,
    'satisfied', verdict, 'opened', 0, 'completed', 0, 'late', redis.call('SCARD', parent.u))
  if open > 0 then
    local is_impossible = verdict == '0' and policy ~= 'fail_fast'
    want_children_cancelled(w, 'join: ' .. policy .. (is_impossible and ' impossible' or ' satisfied'), round, at.now)
  end
  if redis.call('HEXISTS', w, 'then') == 1 then redis.call('HSET', w, 'publish_at', stamp(at.now + patience)) end
  reschedule_workflow(w, at.due, parent.id)
  redis.call('HINCRBY', at.counters, 'released', 1)
  return release
end

local resolve_child -- below; where a workflow ends, it is a resolved child itself

-- A workflow's parent goes on without it.
local function leave_parent(line, level, state, at)
  local child, parent = line[level], line[level + 1]
  local f = redis.call('HMGET', child.w, 'label', 'in_round')
  local text = 'Sub-task ' .. child.id .. ' is ' .. state .. ': ' .. (f[1] or '')
  local note = cjson.encode({delegation_id = child.id, agent = '', state = state, text = text, source = 'delegation'})
  tell_parent(parent.w, parent.n, parent.t, at.due, parent.id, child.id, note, at.keep, 0, at.now)
  if resolve_child(line, level + 1, child.id, f[2], state == 'COMPLETED', at) then redis.call('HSET', child.w, 'late_child', 1) end
  redis.call('PUBLISH', at.roots .. ':' .. parent.id, child.id)
end

-- Its retention begins with its own end, but not before its parent has ended, which reads its outcome.
local function is_kept_for(parent)
  local state = parent and redis.call('HGET', parent.w, 'state')
  return state and not ENDED[state] and redis.call('TTL', parent.w) < 0
end

-- The end of the workflow at a level of the line, with ``count`` unresolved children; one that is cancelled ends when the
-- last of these has.
local function end_workflow(line, level, state, count, reason, at)
  local w, id = line[level].w, line[level].id
  redis.call('HDEL', w, 'expire_at')
  if state ~= 'COMPLETED' then
    -- A completed workflow's last continuation is still owed to it; another's is withdrawn.
    redis.call('HDEL', w, 'publish_at', 'then')
    if count > 0 then want_children_cancelled(w, reason, nil, at.now) end
  end
  if count == 0 then redis.call('HDEL', w, 'cancel_at') end
  if state == 'CANCELED' and count > 0 then
    redis.call('HSET', w, 'state', 'CANCELING')
  else
    redis.call('HSET', w, 'state', state, 'ended_at', stamp(at.now))
    if not is_kept_for(line[level + 1]) then redis.call('HSET', w, 'cleanup_at', stamp(at.now)) end
    if line[level + 1] then leave_parent(line, level, state, at) end
  end
  reschedule_workflow(w, at.due, id)
end

-- A joining workflow is released when its policy says so, a cancelled one ends with its last child; the release's id, or ''.
local function resolve_parent(line, level, at)
  local parent = line[level]
  local f = redis.call('HMGET', parent.w, 'state', 'policy', 'opened', 'completed', 'late')
  if f[1] == 'JOINING' then
    local policy, open = f[2] or 'all', math.max(0, redis.call('SCARD', parent.u) - tonumber(f[5] or 0))
    local verdict = join_verdict(policy, tonumber(f[3] or 0), open, tonumber(f[4] or 0))
    return verdict and record_release(parent, at, policy, open, verdict, level == 1 and at.patience or 0) or ''
  end
  if f[1] == 'CANCELING' and redis.call('SCARD', parent.u) == 0 then end_workflow(line, level, 'CANCELED', 0, '', at) end
  return ''
end

-- Out of the unresolved set of the workflow at a level, and counted in the round it was opened in: once, however often.
-- Answers whether that round was over.
local function leave_unresolved(parent, id, in_round, is_completed)
  local round = tonumber(redis.call('HGET', parent.w, 'round') or '')
  local was_there = redis.call('SREM', parent.u, id) == 1
  local is_late = round and in_round and tonumber(in_round) <= round
  if round and was_there then
    if is_late then
      if tonumber(redis.call('HGET', parent.w, 'late') or 0) > 0 then redis.call('HINCRBY', parent.w, 'late', -1) end
    elseif is_completed then
      redis.call('HINCRBY', parent.w, 'completed', 1)
    end
  end
  return is_late, was_there
end

-- A child of the workflow at a level has ended: whether its round was over, and the release it led to, or ''.
resolve_child = function(line, level, id, in_round, is_completed, at)
  local is_late = leave_unresolved(line[level], id, in_round, is_completed)
  return is_late, resolve_parent(line, level, at)
end
