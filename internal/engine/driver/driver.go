// Package driver knows which engines a program links, and the kinds of errors of opening one. The packages below engine register
// the engines that they link.
package driver

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"strings"
	"sync"

	"holdfast/internal/engine/durable"
	"holdfast/stream"
)

// An Opener opens an engine. It removes passwords of the URL from its errors.
type Opener func(ctx context.Context, rawURL string, o durable.Options) (durable.Log, error)

var (
	mu      sync.RWMutex
	openers = make(map[string]Opener) // by scheme
)

// Register registers an engine under the schemes of its URLs. It may be called concurrently.
func Register(open Opener, schemes ...string) {
	mu.Lock()
	defer mu.Unlock()
	for _, scheme := range schemes {
		openers[scheme] = open
	}
}

// Of returns the Opener for URLs of a scheme; nil: no linked package has registered one.
func Of(scheme string) Opener {
	mu.RLock()
	defer mu.RUnlock()
	return openers[scheme]
}

// The kinds of errors of opening a store. Package engine has them too, and documents them.
var (
	ErrScheme       = errors.New("no such engine")
	ErrNotImported  = errors.New("the program does not import the engine")
	ErrURL          = errors.New("wrong URL of an engine")
	ErrUnreachable  = errors.New("the engine is not reachable")
	ErrInUse        = errors.New("in use by another process")
	ErrIncompatible = errors.New("the engine does not fit")
	ErrPermission   = errors.New("no permission at the engine")
)

// kinds are all kinds, the most specific ones first.
var kinds = []error{ErrScheme, ErrNotImported, ErrURL, ErrInUse, ErrIncompatible, ErrPermission, ErrUnreachable}

// An of is an error with a kind. Its text is that of the error alone.
type of struct{ kind, err error }

// Error implements error.
func (e *of) Error() string { return e.err.Error() }

// Unwrap returns the error and the kind.
func (e *of) Unwrap() []error { return []error{e.err, e.kind} }

// As adds a kind to an error, unless the error has a kind already. The text stays. A nil error stays nil.
func As(kind, err error) error {
	if err == nil || kind == nil {
		return err
	}
	for _, k := range kinds {
		if errors.Is(err, k) {
			return err
		}
	}
	return &of{kind, err}
}

// Errorf is [fmt.Errorf] for an error with a kind.
func Errorf(kind error, format string, args ...any) error {
	return As(kind, fmt.Errorf(format, args...))
}

// Kind adds the kind to an error that follows from the system's errors in it, if any does.
func Kind(err error) error {
	var (
		network   net.Error
		file      *fs.PathError
		untrusted *tls.CertificateVerificationError
		noTLS     tls.RecordHeaderError
		alert     tls.AlertError
	)
	switch {
	case err == nil:
	case errors.Is(err, fs.ErrPermission):
		return As(ErrPermission, err)
	case errors.As(err, &file): // a file that the URL names
		return As(ErrURL, err)
	case errors.As(err, &untrusted), errors.As(err, &noTLS):
		return As(ErrURL, err)
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls: "): // that error has a type that package tls does not export
		return As(ErrPermission, err)
	case errors.Is(err, stream.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.As(err, &network):
		return As(ErrUnreachable, err)
	}
	return err
}
