-- Included before other scripts: Redis time, and the one place that keeps the due index in step with a record's timers.
local function seconds(text)
  return tonumber(text or '')
end

local function redis_now()
  local t = redis.call('TIME')
  return tonumber(t[1]) + tonumber(t[2]) / 1000000
end

local function stamp(at)
  return string.format('%.3f', at)
end

-- Of delegations, then of workflows; a name means the same in both.
local TIMERS = {'lease_until', 'deadline_at', 'poll_at', 'refetch_at', 'publish_at', 'cleanup_at', 'reply_at', 'cancel_at',
  'note_at', 'expire_at'}

-- The timers that are set, by name, as numbers; and as they are written.
local function read_timers(record)
  local at, written = {}, {}
  for i, value in ipairs(redis.call('HMGET', record, unpack(TIMERS))) do
    if value then
      at[TIMERS[i]] = seconds(value)
      written[#written + 1] = TIMERS[i] .. '=' .. value
    end
  end
  return at, written
end

-- Sets the entry's score to the earliest of these timers; removes the entry when none is set.
local function schedule(due, member, timers)
  local earliest
  for _, at in pairs(timers) do
    if not earliest or at < earliest then earliest = at end
  end
  if earliest then redis.call('ZADD', due, stamp(earliest), member) else redis.call('ZREM', due, member) end
end

-- The entry of a delegation, by the timers that count in its phase.
local function reschedule(record, due, member, now)
  local phase = redis.call('HGET', record, 'phase')
  local at = read_timers(record)
  local leased = at.lease_until and at.lease_until > now
  if phase == 'SETTLED' or phase == 'RELEASED' then
    schedule(due, member, {publish_at = at.publish_at, cleanup_at = at.cleanup_at and leased and at.lease_until or at.cleanup_at})
  elseif leased then
    schedule(due, member, {lease_until = at.lease_until, deadline_at = at.deadline_at}) -- a step is at work: nothing else until it ends or is dead
  else
    if phase ~= 'WATCHING' then at.reply_at = nil end
    schedule(due, member, at)
  end
end

-- Why a workflow in this state takes no children and no join, or nil. A released one is kept past its deadline, and what
-- would come then goes with nobody.
local function why_closed(state, deadline_at, now)
  if state ~= 'OPEN' and state ~= 'RELEASED' then return state end
  return (seconds(deadline_at) or 1e15) <= now and 'past its deadline' or nil
end

-- The entry of a workflow: all its timers count, always; its deadline is what it promised, its timer is expire_at.
local function reschedule_workflow(workflow, due, id)
  local at = read_timers(workflow)
  at.deadline_at = nil
  schedule(due, 'workflow:' .. id, at)
end

-- Writes field/value pairs; an empty value removes the field.
local function write_fields(record, argv, first, count)
  local written, removed = {}, {}
  for i = first, first + 2 * count - 2, 2 do
    if argv[i + 1] == '' then
      removed[#removed + 1] = argv[i]
    else
      written[#written + 1] = argv[i]
      written[#written + 1] = argv[i + 1]
    end
  end
  if #written > 0 then redis.call('HSET', record, unpack(written)) end
  if #removed > 0 then redis.call('HDEL', record, unpack(removed)) end
  return first + 2 * count
end

local function append_history(history, argv, first, count, now, keep)
  for i = first, first + count - 1 do redis.call('RPUSH', history, stamp(now) .. ' ' .. argv[i]) end
  if count > 0 then redis.call('LTRIM', history, -keep, -1) end
  return first + count
end

local function count_up(counters, argv, first, count)
  for i = first, first + count - 1 do redis.call('HINCRBY', counters, argv[i], 1) end
end

-- Gives back the record's call slot and calls up the delegation that waited longest for one.
-- The slot is kept for it a while, so that nobody who comes just now is served first.
local SLOT_KEPT = 5
local function free_slot(calls, waiting, due, id, now)
  if redis.call('ZREM', calls, id) == 1 then
    local first = redis.call('ZPOPMIN', waiting)
    if first[1] then
      redis.call('ZADD', calls, stamp(now + SLOT_KEPT), first[1])
      redis.call('ZADD', due, stamp(now), 'delegation:' .. first[1])
    end
  end
end

-- A call that its delegation's expiry did not wait for has returned: lease and slot are free.
local function end_outlived_call(record, calls, waiting, due, id, now)
  redis.call('HDEL', record, 'lease_until')
  free_slot(calls, waiting, due, id, now)
  reschedule(record, due, 'delegation:' .. id, now)
end
