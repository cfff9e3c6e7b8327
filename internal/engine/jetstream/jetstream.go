// Package jetstream implements durable.Log in NATS JetStream: by a server in this
// process, on its disk, or in a cluster.
//
// There are two JetStream streams, named after a prefix. PREFIX-events has a subject
// for each key with frames. PREFIX-values has a subject for each value, and keeps its
// newest message for the value's own time. The place of a frame, and a value's version,
// is the sequence of its message. The stream's leader checks that no other message was
// stored in between (Nats-Expected-Last-Subject-Sequence). That header is kept with the
// message, so each frame names the frame before it.
package jetstream

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

const (
	// attempt is how long the engine has to store a message. After that the outcome
	// is unknown, so it is short, but enough for an engine with a lot to do.
	attempt = 2 * time.Second
	// reading is how long the engine has to answer a request that can be repeated,
	// and asking the time until its first repetition.
	reading = 4 * time.Second
	asking  = time.Second
	// opening is how long the engine has to start and to answer at all.
	opening = 15 * time.Second
	// closing is how long the server in this process has to end, and subscriptions to be made.
	closing = 10 * time.Second

	// room for the headers of a message, which count towards the largest payload.
	headroom = 1 << 10
	// maxMessage is the size of the largest message between nodes that makes sense:
	// larger ones delay others on the same connection.
	maxMessage = 1 << 20
	// framings is how many reads of frames run at once, beside one of a list. Their
	// answers together stay below the 64 MiB that a server holds for a client before
	// it thinks the client dead.
	framings = 16
)

// Log is a durable.Log in JetStream. Its methods may be called concurrently.
type Log struct {
	nc        *nats.Conn
	server    *embedded // nil: the server is elsewhere
	disk      *syncer   // nil: the server's disk is not ours to sync
	healer    *healer   // nil: as disk
	log       *slog.Logger
	prefix    string
	events    string // names of the streams
	values    string
	keep      time.Duration
	retention atomic.Int64 // of frames, in ns
	crowded   atomic.Bool
	node      string

	replies          replies
	clock            clock
	attempt, reading time.Duration       // as the constants
	framing, listing *semaphore.Weighted // bound how many goroutines read at once
	peers            sync.Map            // node name -> peer
	opened           chan struct{}       // closed when Log is ready
	closed           chan struct{}       // closed when the connection is
}

var _ durable.Log = (*Log)(nil)

// Open opens an engine in other processes, as [OpenWith] says.
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	return OpenWith(ctx, rawURL, o, nil)
}

// OpenWith opens an engine:
//
//	file:DIR                  in this process, which alone may have DIR, by the server that start returns
//	nats://USER:PASS@H1,H2    a cluster; tls:// for one that must be reached over TLS
//
// The URL's query may say, for file:
//
//	max=SIZE     most disk it may take, like 10GiB (the default, or half of the free space)
//	sync=always  an append is on the disk itself before it is acknowledged (a process
//	             that is killed loses nothing without it, a machine without power may);
//	             or how soon after, like 10s; the default is 1s
//
// and for a cluster:
//
//	replicas=N   how many servers keep each message: 3, or 1 if there is only one server
//	prefix=NAME  prefix of its streams and subjects: holdfast
//	max=SIZE     most disk that the streams may take on a server, if they are made now: 10GiB
//	creds=FILE   credentials, as NATS makes them; ca=FILE, cert=FILE and key=FILE for TLS
//
// Streams that do not exist are made. Existing ones are not changed: a setting that
// does not fit is an error. (With file: they are changed.) Errors do not tell
// passwords.
func OpenWith(ctx context.Context, rawURL string, o durable.Options, start Start) (durable.Log, error) {
	a, err := parse(rawURL)
	if err != nil {
		return nil, driver.As(driver.ErrURL, err)
	}
	if a.dir != "" && start == nil {
		return nil, driver.Errorf(driver.ErrNotImported, "there is no server in this process")
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	l := &Log{
		log: o.Logger, prefix: a.prefix, events: a.prefix + "-events", values: a.prefix + "-values",
		keep: o.Keep, node: strings.ToLower(rand.Text()),
		attempt: attempt, reading: reading,
		framing: semaphore.NewWeighted(framings), listing: semaphore.NewWeighted(1), opened: make(chan struct{}), closed: make(chan struct{}),
	}
	if a.dir != "" {
		// A server that was killed reads all its files: start waits as long as that takes.
		if l.server, err = embed(a, o.Logger, start); err != nil {
			return nil, err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, opening)
	defer cancel()
	if err := l.open(ctx, a); err != nil {
		_ = l.Close()
		return nil, kindOf(err)
	}
	if l.server != nil {
		if l.disk, err = l.server.sync(a.sync, l.events, l.values); err != nil {
			_ = l.Close()
			return nil, err
		}
		l.healer = newHealer(l)
	}
	close(l.opened)
	return l, nil
}

func (l *Log) open(ctx context.Context, a address) error {
	var err error
	if l.nc, err = l.connect(ctx, a); err != nil {
		return err
	}
	if err := l.replies.start(l.nc); err != nil {
		return fmt.Errorf("subscribing: %w", err)
	}
	return l.prepare(ctx, a)
}

// kindOf adds its kind to an error of opening.
func kindOf(err error) error {
	if errors.Is(err, jetstream.ErrJetStreamNotEnabled) || errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount) {
		return driver.As(driver.ErrIncompatible, err)
	}
	if errors.Is(err, nats.ErrPermissionViolation) || errors.Is(err, nats.ErrAuthorization) {
		return driver.As(driver.ErrPermission, err)
	}
	if errors.Is(err, nats.ErrNoResponders) || errors.Is(err, nats.ErrTimeout) {
		return driver.As(driver.ErrUnreachable, err)
	}
	if errors.Is(err, nats.ErrSecureConnRequired) || errors.Is(err, nats.ErrSecureConnWanted) { // another scheme
		return driver.As(driver.ErrURL, err)
	}
	return driver.Kind(err)
}

// Retention is how long a frame is kept.
func (l *Log) Retention() time.Duration { return time.Duration(l.retention.Load()) }

// MaxFrame is the largest message of the servers in bytes, less our headers.
func (l *Log) MaxFrame() int { return max(int(l.nc.MaxPayload())-headroom, 0) }

// Alone reports whether no other process can reach the engine.
func (l *Log) Alone() bool { return l.server != nil }

// Ping writes a value and asks for an event that does not exist: it succeeds if the
// leaders of both streams answer, and the servers take writes.
func (l *Log) Ping(ctx context.Context) error {
	full := false
	if l.healer != nil {
		var err error
		if full, err = l.healer.look(); err != nil {
			l.crowded.Store(true)
			return err
		}
	}
	if err := l.write(ctx); err != nil {
		if !l.nc.IsConnected() { // the error of nats.go is only that its buffer is full
			return errNotConnected
		}
		return err
	}
	if _, _, err := l.last(ctx, l.events, l.prefix+".ev.-ping"); err != nil {
		return fmt.Errorf("reading: %w", err)
	}
	l.survey(ctx, full)
	return nil
}

var errNotConnected = fmt.Errorf("%w: there is no connection to any of its servers", stream.ErrUnavailable)

// write writes a value that is never read.
func (l *Log) write(ctx context.Context) error {
	if l.disk != nil {
		if err := l.disk.failed(); err != nil {
			return err
		}
	}
	if _, err := l.publish(ctx, message{subject: l.prefix + ".kv.-ping." + l.node, ttl: 2 * time.Second, any: true}); err != nil {
		return fmt.Errorf("writing: %w", err)
	}
	return nil
}

// Sync waits until everything that was acknowledged is on the disk, if the server is in this
// process.
func (l *Log) Sync(ctx context.Context) error {
	if l.disk == nil {
		return nil
	}
	return l.disk.flush(ctx)
}

// Close ends the connection and, if it is in this process, the server.
func (l *Log) Close() error {
	if l.healer != nil {
		l.healer.close()
	}
	if l.nc != nil {
		if l.nc.IsConnected() {
			_ = l.nc.FlushTimeout(time.Second) // messages to other nodes
		}
		l.nc.Close()
		<-l.closed
	}
	if l.disk != nil {
		l.disk.close()
	}
	if l.server != nil {
		return l.server.close()
	}
	return nil
}

// unavailable returns an error for an unknown outcome.
func unavailable(err error) error { return fmt.Errorf("%w: %w", stream.ErrUnavailable, err) }
