package durable_test

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"holdfast/internal/engine/durable"
	"holdfast/internal/engine/durable/logtest"
	"holdfast/internal/engine/shared"
	"holdfast/internal/mcptest"
	"holdfast/stream"
)

// node is a store on an engine, with its connection.
type node struct {
	*durable.Store
	t   *testing.T
	h   *logtest.Handle
	log *mcptest.Log
}

func open(t *testing.T, e *logtest.Engine, o durable.Options) *node {
	t.Helper()
	n := &node{t: t, h: e.Open(), log: new(mcptest.Log)}
	o.Logger = slog.New(slog.NewTextHandler(n.log, nil))
	n.Store = durable.New(n.h, o)
	return n
}

func (n *node) shut() {
	n.t.Helper()
	if err := n.Close(); err != nil {
		n.t.Errorf("Close: %v", err)
	}
}

func (n *node) create(key stream.SessionKey) stream.Lease {
	n.t.Helper()
	l, err := n.Create(n.t.Context(), key, nil)
	n.want("Create", err, nil)
	return l
}

func (n *node) want(what string, got, want error) {
	n.t.Helper()
	if !errors.Is(got, want) {
		n.t.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

func (n *node) put(l stream.Lease, records ...stream.Record) error {
	return n.Append(n.t.Context(), l, records)
}

// take takes session a over.
func (n *node) take() shared.Taken {
	n.t.Helper()
	was, err := n.Lookup(n.t.Context(), "a")
	n.want("Lookup", err, nil)
	taken, err := n.Acquire(n.t.Context(), was)
	n.want("Acquire", err, nil)
	return taken
}

// says checks that a stream has exactly the entries from from to to.
func (n *node) says(l stream.Lease, number, from, to uint64) {
	n.t.Helper()
	id := stream.ID{Session: l.Session, Number: number}
	oldest, next, err := n.Bounds(n.t.Context(), id)
	if err != nil || oldest != from || next != to+1 {
		n.t.Fatalf("stream %d: %d to %d and %v, want %d to %d", number, oldest, next-1, err, from, to)
	}
	got, err := n.Read(n.t.Context(), stream.Cursor{Stream: id, Seq: from - 1}, make([]stream.Entry, 0, to-from+1))
	if err != nil || uint64(len(got)) != to-from+1 {
		n.t.Fatalf("stream %d: %d entries and %v", number, len(got), err)
	}
	for i, e := range got {
		if want := entry(number, from+uint64(i)); e.Seq != want.Seq || !bytes.HasPrefix(e.Data, want.Data) {
			n.t.Fatalf("stream %d: %d is %.40q", number, e.Seq, e.Data)
		}
	}
}

func entry(number, seq uint64) stream.Record {
	return stream.Record{Number: number, Entry: stream.Entry{Seq: seq, Data: fmt.Appendf(nil, "%d of %d", seq, number)}}
}

func large(number, seq uint64, n int) stream.Record {
	r := entry(number, seq)
	r.Data = append(r.Data, make([]byte, n)...)
	return r
}

func last(r stream.Record) stream.Record {
	r.Last = true
	return r
}

func note(number uint64, text string) stream.Record {
	return stream.Record{Number: number, Note: true, Entry: stream.Entry{Data: []byte(text)}}
}
