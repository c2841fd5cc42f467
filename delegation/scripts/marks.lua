-- Included before save.lua and settle.lua: what else a written change leads to, in the same script.

-- Whether the agent answers: so many calls in a row that it did not answer open its circuit, for longer each time.
-- ``reached`` is '1', '0' or '' (it was not asked, or said "later").
local function note_call(breaker, id, reached, most, first, longest, now)
  if reached == '1' then
    redis.call('DEL', breaker)
    return
  end
  local f = redis.call('HMGET', breaker, 'open_until', 'probe')
  if f[1] and f[2] ~= id then return end -- it was under way when the circuit opened
  if reached == '0' then
    if redis.call('HINCRBY', breaker, 'missed', 1) >= most then
      local opened = redis.call('HINCRBY', breaker, 'opened', 1)
      redis.call('HSET', breaker, 'open_until', stamp(now + math.min(longest, first * 2 ^ math.min(opened - 1, 30))))
      redis.call('HDEL', breaker, 'probe')
    end
    redis.call('EXPIRE', breaker, 3600) -- an agent nobody calls any more is forgotten
  elseif f[1] then
    -- The probe was told "later": the agent is there, and the next one tries soon.
    redis.call('HSET', breaker, 'open_until', stamp(now + first))
    redis.call('HDEL', breaker, 'probe')
  end
end

-- Whether a follower should hold a stream for it; followers listen on the channel named like the set.
local function mark_follow(record, follows, owners, id, wanted)
  if wanted then
    if redis.call('ZADD', follows, 'NX', 0, id) == 1 then redis.call('PUBLISH', follows, id) end
  elseif redis.call('ZREM', follows, id) == 1 then
    redis.call('HDEL', owners, id)
    redis.call('HDEL', record, 'followed')
    redis.call('PUBLISH', follows, id)
  end
end

-- Whether it waits for somebody's reply, since ``asked_at``; '' if not. A reply or a cancel may have come meanwhile: the
-- step knew nothing of it, and a message that came while it was at work did nothing.
local function mark_inbox(record, inbox, id, asked_at, turn, now)
  local f = redis.call('HMGET', record, 'replies', 'cancel_at')
  local has_reply = tonumber(f[1] or 0) > tonumber(turn)
  if asked_at ~= '' and has_reply then redis.call('HSET', record, 'reply_at', stamp(now)) end
  if asked_at ~= '' and not has_reply and not f[2] then
    redis.call('ZADD', inbox, asked_at, id)
  else
    redis.call('ZREM', inbox, id)
  end
end

-- A child may outlive an ended workflow, whose retention has begun: what it adds goes with the workflow.
local function keep_with(workflow, key)
  local left = redis.call('TTL', workflow)
  if left >= 0 then redis.call('EXPIRE', key, math.max(1, left)) end
end

-- A note for the parent, numbered; true when somebody is to be told of it by a message.
local function tell_parent(workflow, notes, untold, due, root, id, note, keep, patience, now)
  if note == '' or redis.call('EXISTS', workflow) == 0 then return false end
  local number = redis.call('HINCRBY', workflow, 'notes', 1)
  redis.call('RPUSH', notes, stamp(now) .. ' ' .. number .. ' ' .. note)
  keep_with(workflow, notes)
  local over = redis.call('LLEN', notes) - keep
  if over > 0 then
    redis.call('LTRIM', notes, over, -1)
    redis.call('HINCRBY', workflow, 'notes_dropped', over)
  end
  if redis.call('HEXISTS', workflow, 'on_note') == 0 then return false end
  redis.call('RPUSH', untold, number .. ' ' .. id)
  keep_with(workflow, untold)
  redis.call('HSETNX', workflow, 'note_at', stamp(now + patience))
  reschedule_workflow(workflow, due, root)
  return true
end
