// Package revival keeps the data, beside their ids, with which sessions of clients are revived: the keys that seal the
// ids, and which sessions were ended and stay ended.
//
// Both are kept in the store that the nodes share; else in a directory, for the next process of this node; else in
// memory. docs/decisions/0046-sealed-ids.md.
package revival

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/sessionid"
	"holdfast/stream"
)

// Values are bytes that a store keeps for all nodes, by names. The methods may be called concurrently; the errors are
// those of package stream.
type Values interface {
	// FirstValue keeps a value for ttl, unless the name has a value, and returns the value that is kept.
	FirstValue(ctx context.Context, name string, value []byte, ttl time.Duration) (is []byte, err error)
	// SetValue keeps a value for ttl, in place of an older value.
	SetValue(ctx context.Context, name string, value []byte, ttl time.Duration) error
	// Value returns a value, or [stream.ErrNotFound] if there is none.
	Value(ctx context.Context, name string) ([]byte, error)
}

// Options say how long sessions can be revived, and where the data for that are kept.
type Options struct {
	// Life is how long after its beginning a session can be revived, above 0.
	Life time.Duration
	// Keys seal (the first) and open ids. nil: the keys in Values or Dir, or a new one, which is kept there.
	Keys []sessionid.Key
	// Values are those of the store, if nodes share it; else nil.
	Values Values
	// Dir is a directory for the next process, if Values is nil; "": none.
	Dir    string
	Logger *slog.Logger // slog.Default()
}

// A Keeper seals and opens ids, and remembers which sessions were ended. Its methods may be called concurrently.
type Keeper struct {
	o    Options
	ring atomic.Pointer[sessionid.Ring] // nil until the keys are known

	settling sync.Mutex
	refresh  time.Time // when Tend writes the keys to the store again; guarded by settling

	ended ended
	notes struct {
		sync.Mutex
		all   map[stream.SessionKey]kept // if Values is nil
		swept time.Time                  // when those that have expired were last looked for
	}
}

// New returns a keeper. It reads and writes nothing yet.
func New(o Options) *Keeper {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	k := &Keeper{o: o, ended: ended{began: make(map[stream.SessionKey]int64)}}
	if len(o.Keys) > 0 {
		k.ring.Store(sessionid.NewRing(o.Keys))
	}
	return k
}

// keysName names the keys among the values, and their file.
const keysName = "session-keys"

// keysTTL is how long the store keeps the keys after they were last written, and keysEvery how often they are written.
const (
	keysTTL   = 400 * 24 * time.Hour
	keysEvery = 24 * time.Hour
)

// keys returns the ring. The first call reads or makes the keys.
func (k *Keeper) keys(ctx context.Context) (*sessionid.Ring, error) {
	if ring := k.ring.Load(); ring != nil {
		return ring, nil
	}
	k.settling.Lock()
	defer k.settling.Unlock()
	if ring := k.ring.Load(); ring != nil {
		return ring, nil
	}
	own := sessionid.NewKey()
	all := []sessionid.Key{own}
	switch {
	case k.o.Values != nil:
		text, err := k.o.Values.FirstValue(ctx, keysName, textOf([]sessionid.Key{own}), keysTTL)
		if err == nil {
			all, err = sessionid.ParseKeys(text)
		}
		if err != nil {
			return nil, fmt.Errorf("session keys: %w", err)
		}
		k.refresh = time.Now().Add(keysEvery)
	case k.o.Dir != "":
		kept, err := keysIn(k.o.Dir, own)
		if err != nil {
			k.o.Logger.Info("sessions will not outlive this process, as their key cannot be kept: give --state-dir or --session-keys", "error", err)
			k.o.Dir = ""
		} else {
			all = kept
		}
	}
	ring := sessionid.NewRing(all)
	k.ring.Store(ring)
	return ring, nil
}

// Seal returns a new id with the claims.
func (k *Keeper) Seal(ctx context.Context, c *sessionid.Claims) (id string, err error) {
	ring, err := k.keys(ctx)
	if err != nil {
		return "", err
	}
	return ring.Seal(c), nil
}

// Tend renews the keys in the store. If the store has lost them, it puts them there again, and the sessions that this node remembers as
// ended. If another node has put its own keys there since, those seal from now on, and Tend adds this node's keys behind them. It has
// to be called every minute.
func (k *Keeper) Tend(ctx context.Context) error {
	ring := k.ring.Load()
	if k.o.Values == nil || len(k.o.Keys) > 0 || ring == nil {
		return nil
	}
	k.settling.Lock()
	defer k.settling.Unlock()
	mine := ring.Keys()
	text, err := k.o.Values.Value(ctx, keysName)
	lost := errors.Is(err, stream.ErrNotFound)
	if lost {
		text, err = k.o.Values.FirstValue(ctx, keysName, textOf(mine), keysTTL)
	}
	if err != nil {
		return fmt.Errorf("session keys: %w", err)
	}
	all, err := sessionid.ParseKeys(text)
	if err != nil {
		return fmt.Errorf("session keys: %w", err)
	}
	kept := len(all)
	for _, key := range mine {
		if !key.In(all) {
			all = append(all, key)
		}
	}
	ring.Set(all)
	if kept < len(all) || !time.Now().Before(k.refresh) {
		if err := k.o.Values.SetValue(ctx, keysName, textOf(all), keysTTL); err != nil {
			return fmt.Errorf("session keys: %w", err)
		}
		k.refresh = time.Now().Add(keysEvery)
	}
	if lost || kept < len(all) {
		return k.endAgain(ctx)
	}
	return nil
}

// textOf encodes keys for the store.
func textOf(keys []sessionid.Key) []byte {
	var text []byte
	for i := range keys {
		text = append(append(text, keys[i].Text()...), '\n')
	}
	return text
}
