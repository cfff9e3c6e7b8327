package session

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/caller"
	"holdfast/internal/mcptest"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A carrier stays for a request that has not begun, however many carriers follow it. Unused carriers end.
func TestCarrierStaysForItsRequest(t *testing.T) {
	h := newHouse(t, Options{}, nil)
	defer h.close()
	carrier := func(kind string) *Session {
		s, err := h.Carrier(httptest.NewRequest(http.MethodPost, "/", nil), &Client{principal: caller.At("", "alice")}, protocol.V20260728, kind, nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := carrier("first")
	for i := range 3 * mostCarriers {
		carrier(fmt.Sprint(i)).Release()
	}
	if all := len(h.all()); all > mostCarriers+2 {
		t.Errorf("%d sessions", all)
	}
	if _, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true); err != nil {
		t.Error(err)
	}
	s.Release()
}

// Clients that describe themselves alike share a carrier, however they spell the description, and
// whether they declare extensions of Holdfast or not.
func TestCarrierOfEqualClients(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	carrier := func(kind string) *Session {
		s, err := h.carry(ours, kind)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	const info = `{"name":"q","version":"1"}`
	first := carrier(info + `,{"roots":{},"sampling":{}}`)
	for kind, same := range map[string]bool{
		`{"version":"1", "name":"\u0071"},{"sampling": {},"roots":{}}`:                         true,
		info + `,{"roots":{},"sampling":{},"extensions":{"holdfast/resumableRequests":{}}}`:    true,
		info + `,{"roots":{},"sampling":{},"extensions":{}}`:                                   true,
		info + `,{"roots":{},"sampling":{},"extensions":{"io.modelcontextprotocol/tasks":{}}}`: false,
		info + `,{"roots":{}}`:                                  false,
		`{"name":"q","version":"2"},{"roots":{},"sampling":{}}`: false,
		`,{"roots":{},"sampling":{}}`:                           false,
	} {
		for range 2 {
			if s := carrier(kind); (s == first) != same {
				t.Errorf("%s: the same is %v", kind, s == first)
			}
		}
	}
	for i := range 3 * mostSpellings {
		h.carriers.kindOf(fmt.Sprintf(`%s,{"n":%d}`, info, i))
	}
	if n := len(h.carriers.spellings); n > mostSpellings {
		t.Errorf("%d spellings are kept", n)
	}
	long := info + `,{"x":"` + strings.Repeat("x", longSpelling) + `"}`
	if h.carriers.kindOf(long) == h.carriers.kindOf(strings.Replace(long, `,{"x"`, `, {"x"`, 1)) {
		t.Error("what a client says of itself is decoded, however long it is")
	}
}

// A backend that is opened again after a take-over may get a request of ours first. That
// request declares the client's capabilities as the client's own request does: without them the
// backend would not ask the client for anything.
func TestCarrierTakenOverAsks(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	h.desk.asked = make(chan backend.Inbound, 1)
	s, err := h.carry(ours, `{"name":"q","version":"1"},{"elicitation":{}}`)
	if err != nil {
		t.Fatal(err)
	}
	s.taken = true
	h.desk.last().sink.Closed(errors.New("died"), true)
	begin(t, s, false, `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"`+protocol.MetaClientCapabilities+`":{"elicitation":{}}}}}`)
	in := <-h.desk.asked
	if got := string(jsonrpc.Field(in.Params, "_meta", protocol.MetaClientCapabilities)); got != `{"elicitation":{}}` {
		t.Errorf("the client's capabilities are %s", got)
	}
}

// carry returns the carrier of a kind of client at an address.
func (h *house) carry(from, kind string) (*Session, error) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	r.RemoteAddr = from + ":1"
	client := h.ClientOf(r, caller.Principal{}, caller.CredentialOf(r.Header))
	s, err := h.Carrier(r, &client, protocol.V20260728, kind, nil)
	if err == nil {
		defer s.Release()
	}
	return s, err
}

// waits lets a request of a kind of client wait in its carrier.
func (h *house) waits(from, kind string) error {
	s, err := h.carry(from, kind)
	if err == nil {
		_, err = s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, true)
	}
	return err
}

const ours, theirs = "192.0.2.1", "192.0.2.2"

// A tenant with clients that describe themselves differently in each request, and leave waiting
// calls behind, reaches the end of its share. Other tenants get in.
func TestCarriersOfOneTenant(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]Options{
		"sessions": {MaxSessions: 16, MaxShare: 0.75}, "processes": {MaxProcesses: 16, MaxShare: 0.75}, "calls": {MaxCalls: 16, MaxShare: 0.75},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, o, nil)
				defer h.close()
				n, failed := 0, 0
				for range 100 {
					if err := h.waits(ours, fmt.Sprint(n, failed)); err == nil {
						n++
					} else if failed++; !errors.Is(err, ErrBusy) {
						t.Fatal(err)
					}
				}
				if n != 12 {
					t.Errorf("one tenant has %d calls that wait, in %d sessions", n, len(h.all()))
				}
				for i := range 4 {
					if err := h.waits(theirs, fmt.Sprint(i)); err != nil {
						t.Errorf("another tenant: %v", err)
					}
				}
			})
		})
	}
}

// Unused carriers make room: those of the same tenant where it has too many, and those of any
// tenant where the node is full.
func TestIdleCarriersMakeRoom(t *testing.T) {
	t.Parallel()
	for what, o := range map[string]Options{
		"sessions": {MaxSessions: 16, MaxShare: 0.75}, "processes": {MaxProcesses: 16, MaxShare: 0.75},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				h := newHouse(t, o, nil)
				defer h.close()
				for i := range 50 {
					if _, err := h.carry(ours, fmt.Sprint(i)); err != nil {
						t.Fatalf("one tenant, %d: %v", i, err)
					}
				}
				if err := h.waits(ours, "waits"); err != nil {
					t.Fatal(err)
				}
				for i := range 50 {
					if _, err := h.carry(fmt.Sprint("192.0.3.", i), "x"); err != nil {
						t.Fatalf("another tenant, %d: %v", i, err)
					}
				}
				synctest.Wait() // the conversations are closed
				for i := range 8 {
					if _, err := h.New(newRequest(), caller.At("", "alice"), false, nil); err != nil {
						t.Errorf("session %d: %v", i, err)
					}
				}
				if n := h.Calls(); n != 1 {
					t.Errorf("%d calls are in flight", n)
				}
			})
		})
	}
}

// A carrier stays while a client may come back for a call in it, however many carriers there
// are. Its conversation may close.
func TestHeldCarrierStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{MaxSessions: 8, MaxProcesses: 4}, nil)
		defer h.close()
		held, err := h.carry(ours, "held")
		if err != nil {
			t.Fatal(err)
		}
		held.use.hold(time.Hour)
		for i := range 20 {
			if _, err := h.carry(fmt.Sprint("192.0.3.", i), "x"); err != nil {
				t.Fatalf("%d: %v", i, err)
			}
		}
		if held.isClosed() {
			t.Error("it has ended")
		}
		if s, err := h.carry(ours, "held"); err != nil || s != held {
			t.Errorf("%v, %v", s, err)
		}
		c := begin(t, held, true, request(1))
		h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		if answers, done := c.Wait(t.Context(), 0); !done || len(answers) != 1 {
			t.Errorf("a call in it: %q", answers)
		}
	})
}

// An ended carrier leaves nothing behind, however it ended.
func TestEndedCarriersAreForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: time.Hour}, nil)
		defer h.close()
		for i := range 9 {
			s, err := h.carry(ours, fmt.Sprint(i))
			if err != nil {
				t.Fatal(err)
			}
			switch i % 3 {
			case 0:
				h.desk.last().sink.Closed(errors.New("it has died"), false)
			case 1:
				h.end(s, errors.New("ended"))
			}
		}
		check := func(want int) {
			t.Helper()
			linked := 0
			h.mu.RLock()
			h.carriers.mu.Lock()
			for _, of := range h.tenants {
				linked += len(of.carriers)
			}
			open := len(h.carriers.open)
			h.carriers.mu.Unlock()
			h.mu.RUnlock()
			if open != want || linked != want || len(h.all()) != want {
				t.Errorf("%d carriers, %d of tenants, %d sessions; want %d", open, linked, len(h.all()), want)
			}
		}
		check(3)
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		check(0)
	})
}
