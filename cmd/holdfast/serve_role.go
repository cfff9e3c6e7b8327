package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"

	"holdfast"
	"holdfast/backend"
)

// roleFlags say which part of the work the process does, if nodes share a store.
type roleFlags struct{ choice }

// check returns an error if the role does not fit the store.
func (f *roleFlags) check(store string, stateless bool) error {
	kind, _, _ := strings.Cut(strings.ToLower(store), ":")
	switch {
	case f.value == "both":
		return nil
	case kind == "memory" || kind == "file":
		return usagef("--role %s needs a store that nodes share: give --store nats://HOST or redis://HOST", f.value)
	case stateless:
		return usagef("--role %s and --stateless are given: without sessions each node stands alone, remove one", f.value)
	}
	return nil
}

func (f *roleFlags) isDoor() bool   { return f.value == "door" }
func (f *roleFlags) isWorker() bool { return f.value == "worker" }

// role returns the value of the option Role.
func (f *roleFlags) role() holdfast.Role {
	if f.value == "both" {
		return holdfast.RoleBoth
	}
	return holdfast.Role(f.value)
}

// noServer is the backend of a door, which never opens it: the command need not even be there.
type noServer struct{}

// Open implements [backend.Backend].
func (noServer) Open(context.Context, backend.Start, backend.Sink) (backend.Conn, error) {
	return nil, errors.New("a door runs no server")
}

// work serves the requests that doors send, until ctx ends. Then it drains.
func (f *serveFlags) work(ctx context.Context, handler *holdfast.Handler, many *configured, admin *admin) error {
	routes := f.routes(ctx, handler, many) // which watches a configuration file
	fmt.Fprintf(f.greeting, "Working for doors on %s: this node has no port for clients\n", redacted(f.store))
	f.logStart("role", f.role.value)
	admin.watch(handler.Ready)
	return serveUntil(ctx, &noListener{closed: make(chan struct{})}, routes, handler, admin, f.drain)
}

// A noListener is the listener of a node to which no client connects.
type noListener struct {
	closed chan struct{}
	once   sync.Once
}

// Accept implements [net.Listener]: it waits for Close.
func (l *noListener) Accept() (net.Conn, error) {
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements [net.Listener].
func (l *noListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements [net.Listener].
func (l *noListener) Addr() net.Addr { return &net.UnixAddr{Name: "none", Net: "unix"} }
