package redis

import (
	"context"
	"crypto/sha1" // #nosec G505: it is how Redis names a script
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

// A script runs in Redis, atomically, on one key. It returns one number or string.
type script struct{ text, sum string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text)) // #nosec G401
	return script{text, hex.EncodeToString(sum[:])}
}

// run runs a script on a key and returns its result. data is the first of its
// arguments.
func (l *Log) run(ctx context.Context, s *script, key string, data []byte, args ...any) (*redis.Cmd, error) {
	return l.write(ctx, key, data, func(ctx context.Context, data []byte, whole bool) *redis.Cmd {
		words := make([]any, 0, 5+len(args))
		if whole {
			words = append(words, "eval", s.text, 1, key, data)
		} else {
			words = append(words, "evalsha", s.sum, 1, key, data)
		}
		return redis.NewCmd(ctx, append(words, args...)...)
	})
}

// now is the server's clock in microseconds. A number of Lua's is exact up to
// 2^53, which this clock reaches in the year 2255.
const now = `
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
`

// touchScript sets a key's time to live to its present value: a write that changes nothing.
const touchScript = `
local left = redis.call('PTTL', KEYS[1])
if left > 0 then redis.call('PEXPIRE', KEYS[1], left) end
return 0
`

// trimScript drops frames, and with the last one the key: an empty stream takes memory until it expires.
// KEYS[1] the frames; ARGV the place before which they are dropped.
const trimScript = `
redis.call('XTRIM', KEYS[1], 'MINID', ARGV[1])
if redis.call('XLEN', KEYS[1]) == 0 then redis.call('DEL', KEYS[1]) end
return 0
`

// The scripts that write. If they find a conflict, they touch the key if ARGV has
// "touch": WAIT waits only for commands that write, and a caller must not learn of
// the present data before the replicas have it.
var (
	// KEYS[1] the frames; ARGV the frame, the last one's place, the retention in ms,
	// "touch". Returns the new one's place, or minus the place of the last.
	appendScript = newScript(now + `
local last = 0
local tail = redis.call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
if tail then last = tonumber(string.match(tail[1], '^%d+')) end
local keep = tonumber(ARGV[3])
if last ~= tonumber(ARGV[2]) then
  if last > 0 and ARGV[4] == 'touch' then redis.call('PEXPIRE', KEYS[1], math.ceil(keep * 1.25)) end
  return -last
end
local at = math.max(now, last + 1)
redis.call('XADD', KEYS[1], 'MINID', '~', string.format('%.0f', now - keep * 1000),
  string.format('%.0f-0', at), 'f', ARGV[1])
if redis.call('PTTL', KEYS[1]) < keep then redis.call('PEXPIRE', KEYS[1], math.ceil(keep * 1.25)) end
return at
`)

	// KEYS[1] the value; ARGV the value, the version that it has to have, how long it
	// lives in ms, "touch". Returns the new version, or 0.
	putScript = newScript(now + `
local was = redis.call('GETRANGE', KEYS[1], 0, 19)
if was ~= ARGV[2] then
  if was ~= '' and ARGV[4] == 'touch' then
    redis.call('PEXPIRE', KEYS[1], math.max(1, redis.call('PTTL', KEYS[1])))
  end
  return 0
end
local version = math.max(now, (tonumber(was) or 0) + 1)
redis.call('SET', KEYS[1], string.format('%020.0f', version) .. ARGV[1], 'PX', ARGV[3])
return version
`)

	// KEYS[1] the value; ARGV "", the version that it has to have or "". Returns 1,
	// or 0 for another version.
	removeScript = newScript(`
local was = redis.call('GETRANGE', KEYS[1], 0, 19)
if was ~= '' and ARGV[2] ~= '' and was ~= ARGV[2] then return 0 end
redis.call('DEL', KEYS[1])
return 1
`)
)
