// Package redis keeps streams in Redis or Valkey, version 6.2 or newer.
//
// # URLs
//
//	redis://USER:PASS@HOST:6379/DB
//	rediss://USER:PASS@HOST:6379/DB                   over TLS
//	redis+sentinel://USER:PASS@H1:26379,H2,H3/DB?master=NAME
//	redis+cluster://USER:PASS@H1:6379,H2,H3           version 7 or newer
//
// USER and PASS are those of the Redis servers, with special characters written
// %XX; for Sentinels that ask for a password too there are sentinel_username and
// sentinel_password. Hosts without a port have Redis's own, 6379, and Sentinels
// 26379. More options follow a question mark:
//
//	prefix=holdfast   prefix of all keys and channels
//	wait=1            how many replicas have to acknowledge each write
//	tls=true          for Sentinel and Cluster
//
// and those that go-redis knows by their names in snake case, such as pool_size,
// client_name and, with TLS, skip_verify.
//
// # Settings of Redis
//
// maxmemory-policy has to be noeviction: else Redis would drop acknowledged data,
// and Open refuses it. With appendonly yes and appendfsync always, nothing that was
// acknowledged is lost when a server is killed or a machine without power. With
// appendfsync everysec the last second or two can be lost, also if only the server
// was killed and the disk was slow (Redis then answers before it has written to the
// file). When a replica is promoted, the writes that it does not have yet are lost,
// unless each write waits for it (wait=1; then nothing can be written, nor a
// session taken over, while there is no replica, so have two). Nothing helps if a
// master that was replaced is made the master again: Redis is no quorum; where that
// matters, use JetStream. stream-node-max-bytes 512 saves memory where most calls
// are short.
//
// # Keys
//
// A session's keys share a hash tag, so that they are in one slot of a Cluster:
// PREFIX:{SESSION}:v:KIND is a string, a value and its version before it;
// PREFIX:{SESSION}:f:KIND a stream, an entry for each frame. Versions and ids are
// the server's clock in microseconds, or one more than the one before, so that no
// value and no frame ever has the same as another, though keys expire.
package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"holdfast/internal/defaults"
	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

const (
	attemptTime = 2 * time.Second // how long one attempt may take
	maxFrame    = 8 << 20
)

// errMoved says that the key is on another server of the Cluster by now.
var errMoved = errors.New("the key has moved")

// A Log is a connection to Redis. It is a [durable.Log].
type Log struct {
	*bus

	client    redis.UniversalClient
	cluster   *redis.ClusterClient // client, if it is a Cluster; else nil
	base      string               // prefix of all keys
	replicas  int                  // how many replicas have to acknowledge a write
	retention time.Duration
	attempt   time.Duration // attemptTime, except in tests
	logger    *slog.Logger
	writes    lane // not used with a Cluster
}

// Open connects to the Redis that a URL names, and checks its version and its
// settings. The URLs are in the package documentation; no error tells a password.
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	t, err := parse(rawURL)
	if err != nil {
		return nil, driver.As(driver.ErrURL, err)
	}
	return openTarget(ctx, &t, o, attemptTime)
}

func openTarget(ctx context.Context, t *target, o durable.Options, attempt time.Duration) (durable.Log, error) {
	// go-redis has one logger for the process, which writes errors to stderr that
	// it also returns.
	redis.SetLogger(&logging.VoidLogger{})
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.Keep <= 0 {
		o.Keep = defaults.Keep
	}
	l := &Log{
		base:     t.prefix + ":",
		replicas: t.replicas,
		// A stream that has just ended may have begun as long ago as a finished one
		// is kept.
		retention: 2 * o.Keep,
		attempt:   attempt,
		logger:    o.Logger,
	}
	switch {
	case t.failover != nil:
		l.client = redis.NewFailoverClient(t.failover)
	case t.cluster != nil:
		l.cluster = redis.NewClusterClient(t.cluster)
		l.client = l.cluster
	default:
		l.client = redis.NewClient(t.single)
	}
	if err := l.check(ctx); err != nil {
		l.client.Close()
		return nil, kindOf(err)
	}
	l.bus = newBus(l, fmt.Sprintf("%s%d:", l.base, t.db), strings.ToLower(rand.Text()[:16]))
	return l, nil
}

// kindOf adds its kind to an error of opening.
func kindOf(err error) error {
	var said redis.Error // an answer of the server
	switch text := err.Error(); {
	case redis.IsAuthError(err), redis.IsPermissionError(err), strings.Contains(text, "ERR AUTH"), strings.Contains(text, "sent AUTH"), strings.Contains(text, "WRONGPASS"), strings.Contains(text, "NOAUTH"):
		return driver.As(driver.ErrPermission, err)
	case strings.Contains(text, "DB index is out of range"):
		return driver.As(driver.ErrURL, err)
	case redis.IsLoadingError(err), redis.IsClusterDownError(err), redis.IsMasterDownError(err), redis.IsTryAgainError(err), redis.IsMaxClientsError(err):
		return driver.As(driver.ErrUnreachable, err)
	case strings.Contains(text, "can't parse"), strings.Contains(text, "invalid reply"), errors.As(err, &said): // the server is no Redis, or lacks a command
		return driver.As(driver.ErrIncompatible, err)
	}
	return driver.Kind(err)
}

// Retention is how long a frame is kept at the least.
func (l *Log) Retention() time.Duration { return l.retention }

// MaxFrame is the size in bytes of the largest frame or value.
func (*Log) MaxFrame() int { return maxFrame }

// Ping reports whether Redis answers, and takes writes.
func (l *Log) Ping(ctx context.Context) error {
	key := l.base + "{ping}"
	_, err := l.write(ctx, key, nil, func(ctx context.Context, _ []byte, _ bool) *redis.Cmd {
		return redis.NewCmd(ctx, "set", key, "", "ex", 60)
	})
	return failed("ping", err)
}

// Close sends the queued messages, for a second at most, and ends the connections.
func (l *Log) Close() error {
	l.hangUp()
	l.writes.flights.Wait()
	return l.client.Close()
}

// master returns the connections to the server that has a key.
func (l *Log) master(ctx context.Context, key string) (*redis.Client, error) {
	if l.cluster != nil {
		return l.cluster.MasterForKey(ctx, key)
	}
	return l.client.(*redis.Client), nil
}

// exec runs commands one after the other on one connection to the server that has
// the key, and returns the first's error. In a Cluster they are sent again to the
// key's new server if the key has moved; otherwise no command is sent twice. A key
// that does not exist is no error.
func (l *Log) exec(ctx context.Context, key string, make func() []redis.Cmder) ([]redis.Cmder, error) {
	for {
		node, err := l.master(ctx, key)
		if err != nil {
			return nil, err
		}
		cmds := make()
		if len(cmds) == 1 {
			err = node.Process(ctx, cmds[0])
		} else {
			err = pipeline(ctx, node, cmds)
		}
		err = ignoreNil(err)
		if err == nil || l.cluster == nil {
			return cmds, err
		}
		l.cluster.ReloadState(ctx) // in the background: another server may be master by now
		if !hasMoved(err) {
			return cmds, err
		}
		// The server has refused the commands: they can be sent again.
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %w", errMoved, ctx.Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func pipeline(ctx context.Context, node *redis.Client, cmds []redis.Cmder) error {
	p := node.Pipeline()
	for _, cmd := range cmds {
		_ = p.Process(ctx, cmd) // it is only queued
	}
	_, err := p.Exec(ctx)
	return err
}

// read runs a command that reads a key, and returns the server's time of the read.
// After an error it tries once more. If replicas have to acknowledge writes, it
// waits until they have the data that it read: a caller that repeats an
// unacknowledged write and finds it there takes it for acknowledged. So the read
// fails at a master that was replaced without knowing it, as that has no replicas.
func (l *Log) read(ctx context.Context, key string, args ...any) (*redis.Cmd, time.Time, error) {
	for try := 0; ; try++ {
		cmd, now, err := l.readOnce(ctx, key, args)
		if err == nil || try > 0 || ctx.Err() != nil {
			return cmd, now, err
		}
	}
}

func (l *Log) readOnce(ctx context.Context, key string, args []any) (*redis.Cmd, time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, l.attempt)
	defer cancel()
	cmds, err := l.exec(ctx, key, func() []redis.Cmder {
		cmds := []redis.Cmder{redis.NewCmd(ctx, args...), redis.NewTimeCmd(ctx, "time")}
		if l.replicas > 0 {
			cmds = append(cmds, redis.NewCmd(ctx, "eval", touchScript, 1, key), l.wait(ctx))
		}
		return cmds
	})
	for _, cmd := range cmds[min(1, len(cmds)):] {
		if err == nil {
			err = cmd.Err()
		}
	}
	if err == nil && l.replicas > 0 {
		err = l.enough(cmds[3])
	}
	if err != nil {
		return nil, time.Time{}, err
	}
	return cmds[0].(*redis.Cmd), cmds[1].(*redis.TimeCmd).Val(), nil
}

// key returns the name in Redis of a key's value ("v") or frames ("f"): the hash
// tag is all that follows its first dot.
func (l *Log) key(of, key string) string {
	kind, session, ok := strings.Cut(key, ".")
	if !ok {
		kind, session = "", key
	}
	return l.base + "{" + session + "}:" + of + ":" + kind
}

// commands returns a function that makes one command.
func commands(ctx context.Context, args []any) func() []redis.Cmder {
	return func() []redis.Cmder { return []redis.Cmder{redis.NewCmd(ctx, args...)} }
}

// age returns how long before now a place or a version was made.
func age(now time.Time, at uint64) time.Duration {
	return now.Sub(time.UnixMicro(int64(at)))
}

// failed maps an error of an operation to one of package stream.
func failed(what string, err error) error {
	switch {
	case err == nil:
		return nil
	case strings.Contains(err.Error(), "OOM command not allowed"):
		return fmt.Errorf("%s: %w: %w", what, stream.ErrFull, err)
	default:
		return fmt.Errorf("%s: %w: %w", what, stream.ErrUnavailable, err)
	}
}

func hasMoved(err error) bool {
	return redis.HasErrorPrefix(err, "MOVED") || redis.HasErrorPrefix(err, "ASK") || redis.HasErrorPrefix(err, "TRYAGAIN")
}

func ignoreNil(err error) error {
	if errors.Is(err, redis.Nil) {
		return nil
	}
	return err
}
