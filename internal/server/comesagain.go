package server

import (
	"context"
	"io"

	"holdfast/internal/session"
)

// What follows is for calls that come again at another node: [session.Elsewhere].

// Strand implements [session.Elsewhere].
func (e elsewhere) Strand(keys []byte, name uint64) { e.h.nodes.TellStranded(keys, name) }

// Unstrand implements [session.Elsewhere].
func (e elsewhere) Unstrand(node string, keys []byte, name uint64) {
	e.h.nodes.TellTaken(node, keys, name)
}

// Alone implements [session.Elsewhere].
func (e elsewhere) Alone() bool { return e.h.nodes.Alone() }

// Fly implements [session.Elsewhere].
func (e elsewhere) Fly(all []session.Flight) { e.h.nodes.TellFlights(all) }

// Borrow implements [session.Elsewhere].
func (e elsewhere) Borrow(ctx context.Context, node string, query []byte) (io.ReadCloser, error) {
	return e.h.nodes.Borrow(ctx, node, query)
}
