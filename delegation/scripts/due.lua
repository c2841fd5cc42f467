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

local TIMERS = {'lease_until', 'deadline_at', 'poll_at', 'refetch_at', 'publish_at', 'cleanup_at'}

-- Sets the entry's score to the earliest timer that counts now; removes the entry when none does.
local function reschedule(record, due, member, now)
  local f = redis.call('HMGET', record, 'phase', unpack(TIMERS))
  local settled = f[1] == 'SETTLED' or f[1] == 'RELEASED'
  local lease = seconds(f[2])
  local earliest
  local function count(at)
    if at and (not earliest or at < earliest) then earliest = at end
  end
  if settled then
    local cleanup = seconds(f[7])
    count(seconds(f[6])) count(cleanup and lease and lease > now and lease or cleanup)
  else
    count(seconds(f[3]))
    if lease and lease > now then
      count(lease) -- a step is at work: nothing else to do until it ends or is presumed dead
    else
      count(seconds(f[4])) count(seconds(f[5])) count(seconds(f[6])) count(lease)
    end
  end
  if earliest then redis.call('ZADD', due, stamp(earliest), member) else redis.call('ZREM', due, member) end
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
