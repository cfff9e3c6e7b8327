// Package engine opens stores, which keep sessions and the messages of calls. Pass the store
// to the handler, in holdfast.Options.
//
// [Open] takes a URL, which selects the engine. A program links the engines that it imports, as with database/sql. memory: is always linked:
//
//	memory:                      the memory of this process
//	file:DIR                     a directory of this machine, used by one process at a time: import _ "holdfast/engine/file"
//	nats://USER:PASS@H1,H2,H3    a NATS JetStream cluster, shared by any number of nodes: import _ "holdfast/engine/nats"
//	redis://HOST:PORT/DB         Redis or Valkey, shared by any number of nodes: import _ "holdfast/engine/redis"
//
// docs/stores.md in the repository describes the options of each URL, each engine's
// guarantees, and how to run the engines.
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

// Options configure a store. The zero value of a field selects the default given beside it.
// An invalid value is logged as an error, and the default is used.
type Options struct {
	Keep       time.Duration // how long an ended call can still be read; 10 minutes
	SessionTTL time.Duration // how long an unused session is kept; 30 minutes
	// Memory is the maximum size of the data that the process keeps for clients, in
	// bytes. The store uses at most three quarters of it. The default is a quarter of
	// the memory that the process may use, and at most 1 GiB. Set the same value in
	// holdfast.Options.
	Memory int64
	// MaxShare is the part of the store that one tenant may use, between 0 and 1; 0.75.
	// Set the same value in holdfast.Options.
	MaxShare float64
	Logger   *slog.Logger // slog.Default()
}

// imports maps the scheme of a URL to the package to import for its engine.
var imports = map[string]string{
	"file":           "holdfast/engine/file",
	"nats":           "holdfast/engine/nats",
	"tls":            "holdfast/engine/nats",
	"redis":          "holdfast/engine/redis",
	"rediss":         "holdfast/engine/redis",
	"redis+sentinel": "holdfast/engine/redis",
	"redis+cluster":  "holdfast/engine/redis",
}

// The kinds of errors of [Open], for errors.Is. An error has at most one kind. If the disk is full, the
// error is a [stream.ErrFull].
var (
	// ErrScheme: the string is not a URL, or the URL names no engine.
	ErrScheme = driver.ErrScheme
	// ErrNotImported: the program does not link the engine. The error's text names the package to import.
	ErrNotImported = driver.ErrNotImported
	// ErrURL: the engine cannot use the URL. A part is missing, an option is unknown, a file that the URL names cannot be read,
	// or the server at its address has a certificate that is not trusted, or no TLS.
	ErrURL = driver.ErrURL
	// ErrUnreachable: the engine did not answer before ctx was done, or refused the connection. The engine may be starting, so another
	// attempt may succeed. For the other kinds it does not help to try again.
	ErrUnreachable = driver.ErrUnreachable
	// ErrInUse: another process uses the directory.
	ErrInUse = driver.ErrInUse
	// ErrIncompatible: the engine cannot hold Holdfast's data. Its version is too old, its settings do not fit, the stored data is
	// damaged or not Holdfast's, or a newer version of Holdfast has written it.
	ErrIncompatible = driver.ErrIncompatible
	// ErrPermission: the engine does not accept the user and the password, or the certificate, or the process may not use the directory or a file.
	ErrPermission = driver.ErrPermission
)

// files are the URL parameters that name files. Errors may show their values.
var files = []string{"creds", "ca", "cert", "key"}

// schemes is the part of an error's text that lists the valid URLs.
const schemes = "memory:, file:DIR, nats://HOST or redis://HOST"

// Open opens the store that a URL names, and connects to its engine until ctx is done. The caller must close the
// store, after the handler that uses it. An error never contains a password of the URL. Its kind is one of
// ErrScheme to ErrPermission, or none. Several nodes may share a nats: or redis: store: each node opens it. Open
// may be called concurrently.
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

// check logs each field that has an invalid value. The field's default is used.
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

// addressOf returns a store's URL without passwords and parameters, for logs and errors.
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

// Memory returns a store in the memory of this process. Its data is lost when the
// process ends. The caller must close it.
func Memory(o Options) stream.Store {
	o.check()
	l := memory.Limits(o.Memory, o.MaxShare)
	l.Keep = o.Keep
	return memory.New(l)
}
