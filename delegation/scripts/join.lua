-- The parent wants to be resumed when its children satisfy a policy. No unresolved children: released at once.
-- KEYS 1 workflow   2 due   3 counters   4 unresolved   5 roots
-- ARGV 1 operation id   2 workflow id   3 continuation (JSON) or ''   4 seconds until a message is sent again
--      5 policy: all, any, first_success, fail_fast, 'quorum <k>'
-- Answer {verdict, release id or ''}; a refused join answers {'refused', state or 'past its deadline'}
local now = redis_now()
local f = redis.call('HMGET', KEYS[1], 'state', 'op', 'answer', 'deadline_at')
if not f[1] then return {'unknown', ''} end
if f[2] == ARGV[1] then return {'joined', f[3] or ''} end
local closed = why_closed(f[1], f[4], now)
if closed then return {'refused', closed} end
if redis.call('HEXISTS', KEYS[1], 'publish_at') == 1 then return {'refused', 'PUBLISHING'} end
if ARGV[3] == '' then redis.call('HDEL', KEYS[1], 'then') else redis.call('HSET', KEYS[1], 'then', ARGV[3]) end
redis.call('HDEL', KEYS[1], 'release_id', 'satisfied')
redis.call('HSET', KEYS[1], 'state', 'JOINING', 'op', ARGV[1], 'policy', ARGV[5])
local line = {{id = ARGV[2], w = KEYS[1], u = KEYS[4]}}
local at = {now = now, due = KEYS[2], counters = KEYS[3], roots = KEYS[5], patience = tonumber(ARGV[4])}
local release = resolve_parent(line, 1, at)
redis.call('HSET', KEYS[1], 'answer', release)
redis.call('PUBLISH', KEYS[5] .. ':' .. ARGV[2], ARGV[2])
return {'joined', release}
