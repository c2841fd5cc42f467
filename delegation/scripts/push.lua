-- A push at the door: is its token right, and does it need a message? One call per request, accepted or not.
-- KEYS 1 record   2 due   3 counters
-- ARGV 1 delegation id   2 SHA-256 of the presented token, '' if none   3 '1' if length and content type are acceptable,
--      '0' if not, '' if nothing was read yet and only the credential is asked about
--      4 claimed state or ''   5 shortest time between fetches   6 seconds until a message is sent again
-- Answer 'refused', 'unacceptable', 'woken' (send a wake message), 'coalesced' (202, no message needed), or 'right' when
-- nothing was read yet; that one is not counted: the same push comes again with its body
local digest = redis.call('HGET', KEYS[1], 'digest')
-- Both sides are digests, and Lua compares interned strings by address: the time tells nothing about the token.
if not digest or ARGV[2] == '' or digest ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[3], 'pushes_rejected', 1)
  if ARGV[3] == '' then redis.call('HINCRBY', KEYS[3], 'pushes_refused_unread', 1) end
  return 'refused'
end
if ARGV[3] == '' then return 'right' end
if ARGV[3] ~= '1' then
  redis.call('HINCRBY', KEYS[3], 'pushes_rejected', 1)
  return 'unacceptable'
end
redis.call('HINCRBY', KEYS[3], 'pushes_accepted', 1)
return record_wake(KEYS[1], KEYS[2], ARGV[1], 'push', ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6]), redis_now())
