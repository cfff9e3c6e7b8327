// Package jetstream keeps what durable.Log asks for in NATS JetStream: in this process,
// on its disk, or in a cluster that somebody runs.
//
// Two streams hold it, named after a prefix. PREFIX-events has a subject for each key
// whose frames it keeps, PREFIX-values one for each value, of which only the newest is
// kept, for its own time. A place in a sequence, and a value's version, is the stream's
// sequence of the message. That nobody else has written in between is checked by the
// stream's leader (Nats-Expected-Last-Subject-Sequence); and since that header is kept
// with the message, each frame names the one before it.
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
	// attempt is how long the engine has to store a message. What it does with one
	// after that is not known; so it is as short as it can be without making doubts
	// where there is just a lot to do.
	attempt = 2 * time.Second
	// reading is how long it has to answer what can be asked again, and asking after
	// how long that is done.
	reading = 4 * time.Second
	asking  = time.Second
	// opening is how long it has to be there at all.
	opening = 15 * time.Second
	// closing bounds what is done for others before an end.
	closing = 10 * time.Second

	// room for the headers of a message, which count towards the largest payload.
	headroom = 1 << 10
	// maxMessage is the size of the largest message between nodes that makes sense:
	// larger ones delay others on the same connection.
	maxMessage = 1 << 20
	// framings is how many reads of frames run at once, beside one of a list. What
	// they ask for, together, stays below what a server holds for a client before it
	// thinks it dead (64 MiB).
	framings = 16
)

// Log is a durable.Log in JetStream. Its methods may be called concurrently.
type Log struct {
	nc        *nats.Conn
	server    *embedded // nil: it is elsewhere
	disk      *syncer   // nil: the server's disk is not ours to sync
	healer    *healer   // nil: as disk
	log       *slog.Logger
	prefix    string
	events    string // names of the streams
	values    string
	keep      time.Duration
	retention atomic.Int64 // in ns
	crowded   atomic.Bool
	node      string

	replies          replies
	clock            clock
	attempt, reading time.Duration       // see there
	framing, listing *semaphore.Weighted // how many read at once
	peers            sync.Map            // node name -> peer
	opened           chan struct{}       // when all else here is set
	closed           chan struct{}       // when the connection is
}

var _ durable.Log = (*Log)(nil)

// Open opens an engine that is elsewhere. [OpenWith] says how.
func Open(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error) {
	return OpenWith(ctx, rawURL, o, nil)
}

// OpenWith opens an engine:
//
//	file:DIR                  in this process, which alone may have DIR, by a server that start starts
//	nats://USER:PASS@H1,H2    a cluster; tls:// for one that must be reached over TLS
//
// The URL's query may say, for file:
//
//	max=SIZE     most disk it may take, like 10GiB (the default, or half of what is free)
//	sync=always  an append is on the disk itself before it is acknowledged (a process
//	             that is killed loses nothing without it, a machine without power may);
//	             or how soon after, like 10s; the default is 1s
//
// and for a cluster:
//
//	replicas=N   on how many servers all is kept: 3, or 1 where there is only one
//	prefix=NAME  what its streams and subjects begin with: holdfast
//	max=SIZE     most disk that the streams may take on a server, if they are made now: 10GiB
//	creds=FILE   credentials, as NATS makes them; ca=FILE, cert=FILE and key=FILE for TLS
//
// Streams that are not there are made. Those that are there are not changed: what does
// not fit is an error. (file: has nobody else to ask, and changes its own.) Errors do
// not tell passwords.
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
		// Which looks at all it has, if it was not ended in order: as long as it takes.
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

// kindOf returns an error of opening with its kind.
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

// MaxFrame is what the servers take as a message, less our headers.
func (l *Log) MaxFrame() int { return max(int(l.nc.MaxPayload())-headroom, 0) }

// Alone reports whether nobody else can reach the engine.
func (l *Log) Alone() bool { return l.server != nil }

// Ping writes a value that nobody reads and asks for an event that there isn't: the
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
		if !l.nc.IsConnected() { // the client only says that it has no room for what it should send
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

// write writes a value that nobody reads.
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
			_ = l.nc.FlushTimeout(time.Second) // what was told to other nodes
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

// unavailable is an error whose outcome is not known.
func unavailable(err error) error { return fmt.Errorf("%w: %w", stream.ErrUnavailable, err) }
