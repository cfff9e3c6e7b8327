// Package engine opens what keeps the streams.
package engine

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/jetstream"
	"holdfast/internal/engine/memory"
	"holdfast/internal/engine/redis"
	"holdfast/internal/redact"
	"holdfast/stream"
)

// Options say what a store keeps. The zero value of each field stands for the
// default given with it.
type Options struct {
	Keep       time.Duration // how long a finished call can still be read; 10 minutes
	SessionTTL time.Duration // how long a session lives that nobody uses; 30 minutes
	// Memory is the process's budget for what is kept for clients, in bytes, of which
	// the store fills three quarters at the most: a quarter of what the process may have,
	// and 1 GiB at the most. See holdfast.Options.
	Memory int64
	// MaxShare is how much of what is kept one client may have, as a part of 1; 0.75. See
	// holdfast.Options.
	MaxShare float64
	Logger   *slog.Logger // slog.Default()
}

// opener opens an engine. What its errors tell of the URL, which may hold a password,
// Open looks through.
type opener func(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error)

// engines are those that outlive a process, by the schemes of their URLs.
var engines = map[string]opener{
	"file":           jetstream.Open,
	"nats":           jetstream.Open,
	"tls":            jetstream.Open,
	"redis":          redis.Open,
	"rediss":         redis.Open,
	"redis+sentinel": redis.Open,
	"redis+cluster":  redis.Open,
}

// files are the options of URLs that name files, of which errors are to tell.
var files = []string{"creds", "ca", "cert", "key"}

// schemes is what is offered to those who name no engine that there is.
const schemes = "memory:, file:DIR, nats://HOST or redis://HOST"

// Open opens the store that a URL names:
//
//	memory:                      in this process; what it keeps is gone with the process
//	file:DIR                     on this disk, in this process (JetStream): one node
//	nats://USER:PASS@H1,H2,H3    a JetStream cluster: any number of nodes
//	redis://HOST:PORT/DB         Redis or Valkey: any number of nodes
//
// All but memory are a [stream.Shared].
func Open(ctx context.Context, rawURL string, o Options) (stream.Store, error) {
	// net/url does not take several hosts with ports.
	scheme, rest, ok := strings.Cut(rawURL, ":")
	scheme = strings.ToLower(scheme)
	switch {
	case !ok || !isScheme(scheme):
		return nil, errors.New("store: want an engine's URL: " + schemes)
	case scheme == "memory" && rest != "":
		return nil, errors.New(`store "memory:": nothing may follow the colon`)
	case scheme == "memory":
		return Memory(o), nil
	}
	open := engines[scheme]
	if open == nil {
		return nil, fmt.Errorf("store %q: no such engine: want %s", scheme+":", schemes)
	}
	l := limits(o.Memory, o.MaxShare)
	d := durable.Options{
		Keep: o.Keep, SessionTTL: o.SessionTTL, Logger: o.Logger,
		StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes, TenantBytes: l.TenantBytes,
	}
	log, err := open(ctx, scheme+":"+rest, d)
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", scheme+":", redact.Of([]string{rawURL}, files...).Error(err))
	}
	return durable.New(log, d), nil
}

// isScheme says whether s, in lower case, is the scheme of a URL (RFC 3986, section 3.1).
func isScheme(s string) bool {
	return s != "" && s[0] >= 'a' && s[0] <= 'z' && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789+-.") == ""
}

// Memory opens a store in this process.
func Memory(o Options) stream.Store {
	l := limits(o.Memory, o.MaxShare)
	l.Keep = o.Keep
	return memory.New(l)
}

// limits are those of what is kept in memory within a budget. No stream and no session
// takes up a small one, and no client more than its share.
func limits(total int64, share float64) memory.Options {
	if total <= 0 {
		total = budget.Default()
	}
	if share = cmp.Or(share, 0.75); share < 0 || share > 1 {
		share = 1
	}
	kept := budget.Kept(total)
	return memory.Options{
		StreamBytes:  min(kept/8, 16<<20),
		SessionBytes: min(kept/4, 64<<20),
		TotalBytes:   kept,
		TenantBytes:  max(1, int64(share*float64(kept))), // 0 would be the default
	}
}
