package redis

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"holdfast/stream"
)

// versionLen is the length of the version in front of a value, in digits.
const versionLen = 20

// page is about how many keys a scan asks for, and reads the values of, at once.
const page = 500

// touch returns the argument that has a script write in any case, if replicas have
// to acknowledge writes; else "".
func (l *Log) touch() string {
	if l.replicas > 0 {
		return "touch"
	}
	return ""
}

// Put sets a key's value, if its version is still was.
func (l *Log) Put(ctx context.Context, key string, was uint64, value []byte, ttl time.Duration) (uint64, error) {
	if len(value) > maxFrame {
		return 0, fmt.Errorf("put: %w", stream.ErrTooLarge)
	}
	cmd, err := l.run(ctx, &putScript, l.key("v", key), value, digits(was), max(1, ttl.Milliseconds()), l.touch())
	if err != nil {
		return 0, failed("put", err)
	}
	version, err := cmd.Uint64()
	if err != nil {
		return 0, failed("put", err)
	}
	if version == 0 {
		return 0, fmt.Errorf("put: %w", stream.ErrConflict)
	}
	return version, nil
}

// Get returns a key's value, its version, and how long ago it was put.
func (l *Log) Get(ctx context.Context, key string) ([]byte, uint64, time.Duration, error) {
	cmd, now, err := l.read(ctx, l.key("v", key), "get", l.key("v", key))
	if err != nil {
		return nil, 0, 0, failed("get", err)
	}
	text, err := cmd.Text()
	if errors.Is(err, redis.Nil) {
		return nil, 0, 0, fmt.Errorf("get: %w", stream.ErrNotFound)
	}
	if err != nil {
		return nil, 0, 0, failed("get", err)
	}
	value, version, err := split(text)
	if err != nil {
		return nil, 0, 0, failed("get", err)
	}
	return value, version, age(now, version), nil
}

// Remove removes a key's value, if its version is still was.
func (l *Log) Remove(ctx context.Context, key string, was uint64) error {
	cmd, err := l.run(ctx, &removeScript, l.key("v", key), nil, digits(was))
	if err != nil {
		return failed("remove", err)
	}
	if n, err := cmd.Int(); err != nil || n == 0 {
		if err != nil {
			return failed("remove", err)
		}
		return fmt.Errorf("remove: %w", stream.ErrConflict)
	}
	return nil
}

// List calls yield with all values under keys that begin with prefix. A value that
// changes meanwhile comes as it was at some moment.
func (l *Log) List(ctx context.Context, prefix string, yield func(key string, value []byte, version uint64) bool) error {
	kind, session, _ := strings.Cut(prefix, ".")
	pattern := l.base + "{" + session + "*}:v:" + kind
	masters, err := l.masters(ctx)
	if err != nil {
		return failed("list", err)
	}
	seen := make(map[string]struct{}) // SCAN may find a key twice
	for _, master := range masters {
		for cursor, more := uint64(0), true; more; {
			var values map[string]string
			cursor, values, err = l.scan(ctx, master, cursor, pattern)
			if err != nil {
				return failed("list", err)
			}
			for name, text := range values {
				if _, again := seen[name]; again {
					continue
				}
				seen[name] = struct{}{}
				value, version, err := split(text)
				if err != nil {
					return failed("list", err)
				}
				if !yield(l.unkey(name), value, version) {
					return nil
				}
			}
			more = cursor != 0
		}
	}
	return nil
}

// scan reads the values of one page of keys.
func (l *Log) scan(ctx context.Context, master *redis.Client, cursor uint64, pattern string) (uint64, map[string]string, error) {
	ctx, cancel := context.WithTimeout(ctx, l.attempt)
	defer cancel()
	names, next, err := master.ScanType(ctx, cursor, pattern, page, "string").Result()
	if err != nil || len(names) == 0 {
		return next, nil, err
	}
	// Not MGET: in a Cluster these are in many slots.
	pipe := master.Pipeline()
	gets := make([]*redis.StringCmd, len(names))
	for i, name := range names {
		gets[i] = pipe.Get(ctx, name)
	}
	if _, err := pipe.Exec(ctx); ignoreNil(err) != nil {
		return 0, nil, err
	}
	values := make(map[string]string, len(names))
	for i, get := range gets {
		switch text, err := get.Result(); {
		case err == nil:
			values[names[i]] = text
		case hasMoved(err) || errors.Is(err, redis.Nil): // the key is on another master, or gone
		default:
			return 0, nil, err
		}
	}
	return next, values, nil
}

// unkey returns the key of a value by its name in Redis.
func (l *Log) unkey(name string) string {
	session, kind, _ := strings.Cut(strings.TrimPrefix(name, l.base+"{"), "}:v:")
	return kind + "." + session
}

// digits returns a version as it is encoded before a value; "" for 0.
func digits(version uint64) string {
	if version == 0 {
		return ""
	}
	return fmt.Sprintf("%0*d", versionLen, version)
}

// split separates a value from its version.
func split(text string) (value []byte, version uint64, err error) {
	if len(text) < versionLen {
		return nil, 0, errors.New("not a value of ours")
	}
	version, err = strconv.ParseUint(text[:versionLen], 10, 64)
	return []byte(text[versionLen:]), version, err
}
