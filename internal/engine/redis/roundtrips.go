package redis

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"
)

const (
	// maxFlights is how many round trips of writes are under way at most. Further
	// writes wait and go together.
	maxFlights = 4
	// maxLoad is after how many bytes a load of writes that go together is full, and maxShare
	// the size of the largest of them: larger writes go alone, so that no other waits for them.
	maxLoad  = 1 << 20
	maxShare = 64 << 10
)

// A lane carries writes to a server. While they are few, each makes its own round
// trip. When they are many, those that wait go together, which costs the server,
// the network and this process less.
type lane struct {
	flights sync.WaitGroup // goroutines that fly loads

	mu      sync.Mutex
	flying  int
	waiting []*writing
}

// A writing is a command that writes, until it has ended.
type writing struct {
	prepare prepare
	data    []byte
	ended   chan struct{} // nil: its caller makes the round trip

	// When it has ended:
	cmd *redis.Cmd
	err error
}

// A prepare makes a command of data: with its script's text if whole, else its sum.
type prepare func(ctx context.Context, data []byte, whole bool) *redis.Cmd

// write runs a command that writes to the key, and waits until l.replicas replicas
// have it.
func (l *Log) write(ctx context.Context, key string, data []byte, p prepare) (*redis.Cmd, error) {
	w := &writing{prepare: p, data: data}
	if l.cluster != nil || len(data) > maxShare {
		l.fly(ctx, key, []*writing{w})
		return w.cmd, w.err
	}
	lane := &l.writes
	lane.mu.Lock()
	if lane.flying == maxFlights {
		w.ended = make(chan struct{})
		w.data = slices.Clone(data) // it may be sent after its caller has given up
		lane.waiting = append(lane.waiting, w)
		lane.mu.Unlock()
		select {
		case <-w.ended:
			return w.cmd, w.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	lane.flying++
	lane.mu.Unlock()
	l.fly(ctx, key, []*writing{w})
	l.land()
	return w.cmd, w.err
}

// land ends a flight, and begins the next if writes wait.
func (l *Log) land() {
	lane := &l.writes
	lane.mu.Lock()
	defer lane.mu.Unlock()
	load := lane.load()
	if len(load) == 0 {
		lane.flying--
		return
	}
	lane.flights.Go(func() {
		l.fly(context.Background(), "", load)
		for _, w := range load {
			close(w.ended)
		}
		l.land()
	})
}

// load removes the writes that go together next from the waiting ones. The lane is locked.
func (lane *lane) load() []*writing {
	n, size := 0, 0
	for n < len(lane.waiting) && size < maxLoad {
		size += len(lane.waiting[n].data)
		n++
	}
	load := lane.waiting[:n:n]
	lane.waiting = lane.waiting[n:]
	if len(lane.waiting) == 0 {
		lane.waiting = nil
	}
	return load
}

// fly makes a round trip, and a second one for writes with a script that the server
// does not know.
func (l *Log) fly(ctx context.Context, key string, load []*writing) {
	ctx, cancel := context.WithTimeout(ctx, l.attempt)
	defer cancel()
	l.trip(ctx, key, load, false)
	var again []*writing
	for _, w := range load {
		if redis.HasErrorPrefix(w.err, "NOSCRIPT") {
			again = append(again, w)
		}
	}
	if len(again) > 0 {
		l.trip(ctx, key, again, true)
	}
}

// trip runs writes on one connection, and waits for replicas.
func (l *Log) trip(ctx context.Context, key string, load []*writing, whole bool) {
	cmds, err := l.exec(ctx, key, func() []redis.Cmder {
		cmds := make([]redis.Cmder, 0, len(load)+1)
		for _, w := range load {
			w.cmd = w.prepare(ctx, w.data, whole)
			cmds = append(cmds, w.cmd)
		}
		if l.replicas > 0 {
			cmds = append(cmds, l.wait(ctx))
		}
		return cmds
	})
	if cmds != nil { // each command has its own error
		err = nil
	}
	if cmds != nil && l.replicas > 0 {
		err = l.enough(cmds[len(load)])
	}
	for _, w := range load {
		w.err = err
		if w.cmd != nil && w.cmd.Err() != nil {
			w.err = ignoreNil(w.cmd.Err())
		}
	}
}

// wait returns the command that waits for replicas, for half of an attempt's time.
func (l *Log) wait(ctx context.Context) *redis.IntCmd {
	return redis.NewIntCmd(ctx, "wait", l.replicas, (l.attempt / 2).Milliseconds())
}

// enough returns an error if too few replicas have the writes, according to WAIT's answer.
func (l *Log) enough(wait redis.Cmder) error {
	n, err := wait.(*redis.IntCmd).Result()
	if err == nil && n < int64(l.replicas) {
		err = fmt.Errorf("%d of %d replicas have it", n, l.replicas)
	}
	return err
}
