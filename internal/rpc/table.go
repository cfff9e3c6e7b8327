package rpc

import (
	"maps"
	"slices"
	"strconv"
	"sync"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A Table has the requests that a server has not answered. If the server may not write back the id of a request
// unchanged, the request is sent under an id of ours: Node reads 9007199254740993 as another number, and Python writes
// "é" as "\u00e9" ([protocol.PlainID]). The zero value is ready for use; its methods may be called concurrently.
type Table[T any] struct {
	own OwnIDs

	mu      sync.Mutex
	open    map[string]*Entry[T] // by the key of the id that the server knows
	renamed map[string]string    // that key, by the key of the sender's id, if they differ
	givenUp bool                 // a request was cancelled
}

// An Entry is a request that the server has not answered.
type Entry[T any] struct {
	ID    []byte // as its sender spelled it
	Value T
}

// Add notes a request, and returns the message to send.
func (t *Table[T]) Add(m jsonrpc.Message, v T) jsonrpc.Message {
	e := &Entry[T]{ID: m.ID, Value: v}
	key := string(jsonrpc.Key(m.ID))
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.open == nil {
		t.open = make(map[string]*Entry[T])
	}
	if t.open[key] != nil || !protocol.PlainID(m.ID) {
		own := t.own.Next()
		m.Raw, m.ID = m.WithID(own), own
		if t.renamed == nil {
			t.renamed = make(map[string]string)
		}
		t.renamed[key] = string(own)
		key = string(own)
	}
	t.open[key] = e
	return m
}

// Named returns the request that the server knows by an id, or nil. It also finds an integer that the server writes
// as a string, or a string as an integer.
func (t *Table[T]) Named(id []byte) *Entry[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.open[t.key(id)]
}

// End forgets a request, by the id that the server knows, and returns it; nil if there is none.
func (t *Table[T]) End(id []byte) *Entry[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := t.key(id)
	e := t.open[key]
	t.forget(key)
	return e
}

// Update changes the value of a request, by the id that the server knows.
func (t *Table[T]) Update(id []byte, change func(v *T)) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e := t.open[t.key(id)]; e != nil {
		change(&e.Value)
	}
}

// EndEntry forgets a request, and reports whether the server had not answered it.
func (t *Table[T]) EndEntry(e *Entry[T]) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, x := range t.open {
		if x == e {
			t.forget(key)
			return true
		}
	}
	return false
}

// GivenUp reports whether a request was cancelled before it was answered.
func (t *Table[T]) GivenUp() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.givenUp
}

// Len returns the number of requests.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.open)
}

// All returns the requests.
func (t *Table[T]) All() []*Entry[T] {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.open))
}

// Cancelled forgets the request that a notifications/cancelled names, and returns the message with the id that the
// server knows.
func (t *Table[T]) Cancelled(m jsonrpc.Message) jsonrpc.Message {
	id := jsonrpc.Field(m.Params, "requestId")
	if id == nil {
		return m
	}
	t.mu.Lock()
	key := string(jsonrpc.Key(id))
	own, renamed := t.renamed[key]
	if renamed {
		key = own
	}
	t.givenUp = t.givenUp || t.open[key] != nil
	t.forget(key)
	t.mu.Unlock()
	if !renamed {
		return m
	}
	params, ok := jsonrpc.Set(m.Params, []byte(own), "requestId")
	if !ok {
		return m
	}
	m.Params, m.Raw = params, jsonrpc.AppendRequest(nil, nil, m.Method, params)
	return m
}

// key returns the key of the request that a server names by an id. t.mu is held.
func (t *Table[T]) key(id []byte) string {
	key := string(jsonrpc.Key(id))
	if t.open[key] != nil {
		return key
	}
	if other := Respelled([]byte(key)); other != nil && t.open[string(other)] != nil {
		return string(other)
	}
	return key
}

// Respelled returns the integer in a string, or an integer as a string, as some servers write the id of a
// request; nil: the string has no integer. id is a key (see [jsonrpc.Key]).
func Respelled(id []byte) []byte {
	if len(id) == 0 {
		return nil
	}
	if id[0] != '"' {
		return append(append([]byte{'"'}, id...), '"')
	}
	text := string(id[1 : len(id)-1])
	if n, err := strconv.ParseInt(text, 10, 64); err != nil || strconv.FormatInt(n, 10) != text {
		return nil
	}
	return []byte(text)
}

// forget forgets a request. t.mu is held.
func (t *Table[T]) forget(key string) {
	e := t.open[key]
	if e == nil {
		return
	}
	delete(t.open, key)
	if sender := string(jsonrpc.Key(e.ID)); t.renamed[sender] == key {
		delete(t.renamed, sender)
	}
}
