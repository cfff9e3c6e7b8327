// Package engine opens stores: what keeps sessions and the messages of calls. Give the store
// to holdfast.Options.
//
// [Open] takes a URL, which selects the engine:
//
//	memory:                      the memory of this process
//	file:DIR                     a directory of this machine, used by one process at a time
//	nats://USER:PASS@H1,H2,H3    a NATS JetStream cluster, shared by any number of nodes
//	redis://HOST:PORT/DB         Redis or Valkey, shared by any number of nodes
//
// docs/operators.md in the repository describes the options of each URL, what each engine
// promises, and how to run them.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/memory"
	"holdfast/internal/engine/redis"
	"holdfast/internal/redact"
	"holdfast/stream"
)

// Options configure a store. The zero value of each field stands for the default given with
// it.
type Options struct {
	Keep       time.Duration // how long an ended call can still be read; 10 minutes
	SessionTTL time.Duration // how long a session lives that no client uses; 30 minutes
	// Memory is the maximum size of what the process keeps for clients, in bytes. The
	// store uses at most three quarters of it. By default it is a quarter of the memory
	// that the process may use, and at most 1 GiB. Give the handler the same
	// (holdfast.Options).
	Memory int64
	// MaxShare is the part of the store that one tenant may use, between 0 and 1; 0.75.
	// Give the handler the same (holdfast.Options).
	MaxShare float64
	Logger   *slog.Logger // slog.Default()
}

// opener opens an engine. Open removes passwords of the URL from its errors.
type opener func(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error)

// engines are the engines that outlive a process, by the schemes of their URLs.
var engines = map[string]opener{
	"file":           jetstream.Open,
	"nats":           jetstream.Open,
	"tls":            jetstream.Open,
	"redis":          redis.Open,
	"rediss":         redis.Open,
	"redis+sentinel": redis.Open,
	"redis+cluster":  redis.Open,
}

// files are the URL parameters that name files. Errors may show their values.
var files = []string{"creds", "ca", "cert", "key"}

// schemes is what errors offer to a user whose URL names no known engine.
const schemes = "memory:, file:DIR, nats://HOST or redis://HOST"

// Open opens the store that a URL names, and connects to its engine until ctx is done. The
// caller must close the store, after the handler that uses it. Passwords of the URL are not
// in errors. Several nodes may share a nats: or redis: store: each opens it.
// Open may be called concurrently.
func Open(ctx context.Context, rawURL string, o Options) (stream.Store, error) {
	// net/url does not take several hosts with ports.
	scheme, rest, ok := strings.Cut(rawURL, ":")
	scheme = strings.ToLower(scheme)
	switch {
	case !ok || !isScheme(scheme):
		return nil, errors.New("store: want an engine's URL: " + schemes)
	case scheme == "memory" && rest != "":
		return nil, errors.New(`store "memory:": nothing may follow the colon: for a directory, want file:DIR`)
	case scheme == "memory":
		return Memory(o), nil
	}
	open := engines[scheme]
	if open == nil {
		return nil, fmt.Errorf("store %q: no such engine: want %s", scheme+":", schemes)
	}
	l := memory.Limits(o.Memory, o.MaxShare)
	d := durable.Options{
		Keep: o.Keep, SessionTTL: o.SessionTTL, Logger: o.Logger,
		Address:     addressOf(rawURL),
		StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes, TenantBytes: l.TenantBytes,
	}
	log, err := open(ctx, scheme+":"+rest, d)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", scheme+":", redact.Of([]string{rawURL}, files...).Error(err))
	}
	return durable.New(log, d), nil
}

// addressOf returns what may be told of a store's URL: where it leads, without passwords and parameters.
func addressOf(rawURL string) string {
	at, _, _ := strings.Cut(rawURL, "?")
	if scheme, _, _ := strings.Cut(at, ":"); strings.EqualFold(scheme, "file") {
		return at
	}
	return cmp.Or(redact.URL(at), redact.Of([]string{rawURL}, files...).Text(at)) // several hosts with ports are no URL
}

// isScheme reports whether s, in lower case, is the scheme of a URL (RFC 3986, section 3.1).
func isScheme(s string) bool {
	return s != "" && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// Memory returns a store in the memory of this process. What it keeps is lost when the
// process ends. The caller must close it.
func Memory(o Options) stream.Store {
	l := memory.Limits(o.Memory, o.MaxShare)
	l.Keep = o.Keep
	return memory.New(l)
}
