// Package driver knows which engines a program links, and of which kinds the errors of opening one are. The packages below engine
// register those that they link.
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
	openers = make(map[string]Opener) // by schemes
)

// Register makes an engine known by the schemes of its URLs. It may be called concurrently.
func Register(open Opener, schemes ...string) {
	mu.Lock()
	defer mu.Unlock()
	for _, scheme := range schemes {
		openers[scheme] = open
	}
}

// Of returns what opens URLs of a scheme; nil: no package that is linked does.
func Of(scheme string) Opener {
	mu.RLock()
	defer mu.RUnlock()
	return openers[scheme]
}

// The kinds of errors of opening a store. Package engine has the same, with what they mean.
var (
	ErrScheme       = errors.New("no such engine")
	ErrNotImported  = errors.New("the program does not import the engine")
	ErrURL          = errors.New("wrong URL of an engine")
	ErrUnreachable  = errors.New("the engine is not reachable")
	ErrInUse        = errors.New("in use by another process")
	ErrIncompatible = errors.New("the engine does not fit")
	ErrPermission   = errors.New("no permission at the engine")
)

// kinds are those errors, the most telling ones first.
var kinds = []error{ErrScheme, ErrNotImported, ErrURL, ErrInUse, ErrIncompatible, ErrPermission, ErrUnreachable}

// An of is an error that is of a kind. Its text does not say so.
type of struct{ kind, err error }

// Error implements error.
func (e *of) Error() string { return e.err.Error() }

// Unwrap returns both.
func (e *of) Unwrap() []error { return []error{e.err, e.kind} }

// As returns an error that is of a kind, unless it is of one already. The text stays. A nil error stays nil.
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

// Errorf is [fmt.Errorf] for an error of a kind.
func Errorf(kind error, format string, args ...any) error {
	return As(kind, fmt.Errorf(format, args...))
}

// Kind returns an error with the kind that the errors of the system in it say that it is of.
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
	case errors.As(err, &file): // that the URL names
		return As(ErrURL, err)
	case errors.As(err, &untrusted), errors.As(err, &noTLS):
		return As(ErrURL, err)
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls: "): // of a type that package tls does not export
		return As(ErrPermission, err)
	case errors.Is(err, stream.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.As(err, &network):
		return As(ErrUnreachable, err)
	}
	return err
}
