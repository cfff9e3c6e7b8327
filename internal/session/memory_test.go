package session

import (
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// A counter is a [keeper] with room for all.
type counter struct{ atomic.Int64 }

func (c *counter) Hold(_ stream.Lease, n int64) bool { c.Add(n); return true }
func (c *counter) MustHold(_ stream.Lease, n int64)  { c.Add(n) }

// A session counts the bytes of the initialize request that it keeps, whatever became of the requests that came with it, or of others.
func TestHoldsInitialize(t *testing.T) {
	t.Parallel()
	var store *memory.Store
	h := newHouse(t, Options{}, func(st stream.Store) stream.Store { store = st.(*memory.Store); return st })
	defer h.close()
	long := func(id string, size int) jsonrpc.Message {
		return mcptest.Parse(`{"jsonrpc":"2.0","id":` + id + `,"method":"initialize","params":{"clientInfo":{"name":"` + strings.Repeat("n", size) + `"}}}`)
	}
	s, err := h.New(newRequest(), caller.Principal{}, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		if got, want := store.Held(), sessionCost+initializeCost(len(s.backend.initialize)); got != want {
			t.Errorf("%s: %d bytes are counted, of %d", when, got, want)
		}
	}
	check("before the initialize")
	if _, err := s.Begin([]jsonrpc.Message{long("1", 2<<10), long("1", 4<<10)}, true); !errors.Is(err, ErrDuplicate) {
		t.Fatal(err)
	}
	check("after a refused initialize")
	begin(t, s, true, string(long("2", 8<<10).Raw))
	if s.Revision() == "" {
		t.Fatal("the session has not begun")
	}
	check("after the initialize")
	begin(t, s, true, string(long("3", 1<<10).Raw))
	check("after an initialize that is not kept")
}

// An initialize replaces one that the server has refused, also in whether its client can resume requests. The host is known by the request that began
// the session, for each of them.
func TestInitializesAgain(t *testing.T) {
	t.Parallel()
	var agents []string
	h := newHouse(t, Options{Host: func(_, agent string) hosts.Host { agents = append(agents, agent); return hosts.Host{} }}, nil)
	defer h.close()
	r := newRequest()
	r.Header.Set("User-Agent", "host/1")
	s, err := h.Reserve(r, caller.Principal{}, false)
	if err != nil {
		t.Fatal(err)
	}
	initialize := func(capabilities string) {
		begin(t, s, true, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":`+capabilities+`}}`)
	}
	h.desk.initialized = `{"capabilities":{}}`
	if initialize(`{"resumableRequests":{}}`); s.Revision() != "" {
		t.Fatal("the server has not refused the client")
	}
	h.desk.initialized = ""
	initialize(`{}`)
	c := begin(t, s, false, request(2))
	h.desk.last().say(c, response(2))
	if got := readAll(t, s, c.Number()); len(got) != 1 || s.Resumes() != nil {
		t.Errorf("got %q; resumes: %v", got, s.Resumes() != nil)
	}
	if s, err = h.New(r, caller.Principal{}, false, nil); err != nil {
		t.Fatal(err)
	}
	initialize(`{}`)
	if !slices.Equal(agents, []string{"host/1", "host/1", "host/1"}) {
		t.Errorf("the host is told by %q", agents)
	}
}
