// Package engine opens stores: what keeps sessions and the messages of calls. Give the store
// to holdfast.Options.
//
// [Open] takes a URL, which selects the engine. A program links the engines that it imports, as with database/sql, and memory: always:
//
//	memory:                      the memory of this process
//	file:DIR                     a directory of this machine, used by one process at a time: import _ "holdfast/engine/file"
//	nats://USER:PASS@H1,H2,H3    a NATS JetStream cluster, shared by any number of nodes: import _ "holdfast/engine/nats"
//	redis://HOST:PORT/DB         Redis or Valkey, shared by any number of nodes: import _ "holdfast/engine/redis"
//
// docs/stores.md in the repository describes the options of each URL, what each engine
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

	"holdfast/internal/engine/driver"
	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/memory"
	"holdfast/internal/redact"
	"holdfast/stream"
)

// Options configure a store. The zero value of each field stands for the default given with
// it. A value that a field cannot have is logged as an error, and the default holds.
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

// imports are the packages that have engines, by the schemes of their URLs.
var imports = map[string]string{
	"file":           "holdfast/engine/file",
	"nats":           "holdfast/engine/nats",
	"tls":            "holdfast/engine/nats",
	"redis":          "holdfast/engine/redis",
	"rediss":         "holdfast/engine/redis",
	"redis+sentinel": "holdfast/engine/redis",
	"redis+cluster":  "holdfast/engine/redis",
}

// The kinds of errors of [Open], for errors.Is. An error is of one kind at most. A disk that is full is a
// [stream.ErrFull].
var (
	// ErrScheme is that of a URL that names no engine, or is none.
	ErrScheme = driver.ErrScheme
	// ErrNotImported is that of an engine that the program does not link. The error names the package to import.
	ErrNotImported = driver.ErrNotImported
	// ErrURL is that of a URL that the engine cannot use: a part is missing, an option is unknown, a file that it names cannot be
	// read, or it leads to a certificate that is not trusted, or to a server without TLS.
	ErrURL = driver.ErrURL
	// ErrUnreachable is that of an engine that did not answer before ctx was done, or refused the connection. It may be starting: to try
	// again may help, and does not for the other kinds.
	ErrUnreachable = driver.ErrUnreachable
	// ErrInUse is that of a directory that another process uses.
	ErrInUse = driver.ErrInUse
	// ErrIncompatible is that of an engine that cannot keep what Holdfast stores, or has something else: its version is too old, its
	// settings do not fit, what is stored is damaged, or a newer version of Holdfast has written it.
	ErrIncompatible = driver.ErrIncompatible
	// ErrPermission is that of an engine that does not take the user and the password, or the certificate, or of a directory or file that the process may not
	// use.
	ErrPermission = driver.ErrPermission
)

// files are the URL parameters that name files. Errors may show their values.
var files = []string{"creds", "ca", "cert", "key"}

// schemes is what errors offer to a user whose URL names no known engine.
const schemes = "memory:, file:DIR, nats://HOST or redis://HOST"

// Open opens the store that a URL names, and connects to its engine until ctx is done. The
// caller must close the store, after the handler that uses it. Passwords of the URL are not
// in errors, whose kinds are ErrURL and the others. Several nodes may share a nats: or redis: store: each opens it.
// Open may be called concurrently.
func Open(ctx context.Context, rawURL string, o Options) (stream.Store, error) {
	// net/url does not take several hosts with ports.
	scheme, rest, ok := strings.Cut(rawURL, ":")
	scheme = strings.ToLower(scheme)
	switch {
	case !ok || !isScheme(scheme):
		return nil, driver.As(ErrScheme, errors.New("store: want an engine's URL: "+schemes))
	case scheme == "memory" && rest != "":
		return nil, driver.Errorf(ErrURL, `store "memory:": nothing may follow the colon: for a directory, want file:DIR`)
	case scheme == "memory":
		return Memory(o), nil
	}
	o.check()
	open := driver.Of(scheme)
	switch name := imports[scheme]; {
	case name == "":
		return nil, driver.Errorf(ErrScheme, "store %q: no such engine: want %s", scheme+":", schemes)
	case open == nil:
		return nil, driver.Errorf(ErrNotImported, "store %q: the program does not link this engine: add import _ %q", scheme+":", name)
	}
	l := memory.Limits(o.Memory, o.MaxShare)
	d := durable.Options{
		Keep: o.Keep, SessionTTL: o.SessionTTL, Logger: o.Logger,
		Address:     addressOf(rawURL),
		StreamBytes: l.StreamBytes, SessionBytes: l.SessionBytes, TotalBytes: l.TotalBytes, TenantBytes: l.TenantBytes,
	}
	log, err := open(ctx, scheme+":"+rest, d)
	if err == nil {
		if err = driver.As(ErrIncompatible, durable.CheckFormat(ctx, log)); err != nil {
			_ = log.Close()
		}
	}
	if err != nil {
		return nil, fmt.Errorf("store %q: %w", scheme+":", redact.Of([]string{rawURL}, files...).Error(driver.Kind(err)))
	}
	return durable.New(log, d), nil
}

// check tells of fields whose value they cannot have. Their defaults hold.
func (o *Options) check() {
	wrong := func(name string, value any, want string) {
		cmp.Or(o.Logger, slog.Default()).Error("an option has a value that it cannot have: the default holds", "option", "engine.Options."+name, "value", value, "want", want)
	}
	if o.Keep < 0 {
		wrong("Keep", o.Keep, "more than 0")
	}
	if o.SessionTTL < 0 {
		wrong("SessionTTL", o.SessionTTL, "more than 0")
	}
	if o.Memory < 0 {
		wrong("Memory", o.Memory, "more than 0")
	}
	if !(o.MaxShare >= 0 && o.MaxShare <= 1) {
		wrong("MaxShare", o.MaxShare, "more than 0, and at most 1")
	}
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
	o.check()
	l := memory.Limits(o.Memory, o.MaxShare)
	l.Keep = o.Keep
	return memory.New(l)
}
