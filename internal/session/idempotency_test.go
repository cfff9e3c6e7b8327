package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/feature/idempotency"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// keyedCall begins a call under a key, and delivers it if it is a new one.
func keyedCall(t testing.TB, s *Session, key, text string) (*Call, *ExistingCall, error) {
	t.Helper()
	msgs := []jsonrpc.Message{mcptest.Parse(text)}
	c, a, err := s.BeginOnce(Once{Key: key}, []byte(text), msgs)
	if c != nil {
		c.Deliver(context.Background(), msgs, nil)
	}
	return c, a, err
}

// first begins a call under a key that must be free.
func first(t testing.TB, s *Session, key, text string) *Call {
	t.Helper()
	c, a, err := keyedCall(t, s, key, text)
	if err != nil || c == nil || a != nil || c.Number() == 0 {
		t.Fatalf("first under %q: %v, %v, %v", key, c, a, err)
	}
	return c
}

// comesAgain makes the request again and returns the call that it is attached to.
func comesAgain(t testing.TB, s *Session, key, text string) *ExistingCall {
	t.Helper()
	c, a, err := keyedCall(t, s, key, text)
	if err != nil || c != nil || a == nil {
		t.Fatalf("again under %q: %v, %v, %v", key, c, a, err)
	}
	return a
}

// refusal checks the error of a refused request under a key.
func refusal(t testing.TB, s *Session, key, text string, want error) {
	t.Helper()
	if c, a, err := keyedCall(t, s, key, text); !errors.Is(err, want) || c != nil || a != nil {
		t.Fatalf("under %q: %v, %v, %v, want %v", key, c, a, err, want)
	}
}

// with replaces the house's store by a store with other bounds.
func with(t testing.TB, o memory.Options) func(stream.Store) stream.Store {
	return func(st stream.Store) stream.Store {
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		return memory.New(o)
	}
}

func TestKeyedAgain(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	c := first(t, s, "k", request(1))
	running := comesAgain(t, s, "k", request(1))
	if running.Session != s || running.Number != c.Number() {
		t.Errorf("attached to %d, want %d", running.Number, c.Number())
	}
	refusal(t, s, "k", request(2), idempotency.ErrReused)
	link := h.desk.last()
	in := <-link.in
	link.say(in.Call, `{"jsonrpc":"2.0","id":1,"result":{"n":1}}`)
	ended := comesAgain(t, s, "k", request(1))
	if got := readAll(t, ended.Session, ended.Number); len(got) != 1 || !strings.Contains(got[0], `"n":1`) {
		t.Errorf("read %q", got)
	}
	refusal(t, s, "k", request(2), idempotency.ErrReused)
	first(t, s, "K", request(2))
	if len(link.in) != 1 {
		t.Errorf("%d more requests came to the backend, want 1", len(link.in))
	}
}

func TestKeyedRace(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	one, two := h.open("alice"), h.open("alice")
	const n = 32
	for round := range 20 {
		var wg sync.WaitGroup
		var mu sync.Mutex
		var calls []*Call
		var attached []*ExistingCall
		for i := range n {
			s := []*Session{one, two}[i%2]
			wg.Go(func() {
				c, a, err := keyedCall(t, s, fmt.Sprint(round), request(round))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Error(err)
				case c != nil:
					calls = append(calls, c)
				default:
					attached = append(attached, a)
				}
			})
		}
		wg.Wait()
		if len(calls) != 1 || len(attached) != n-1 {
			t.Fatalf("%d calls, %d attached", len(calls), len(attached))
		}
		for _, a := range attached {
			if a.Session != calls[0].Session() || a.Number != calls[0].Number() {
				t.Fatal("attached to another call")
			}
		}
	}
}

// A request that comes while a call is about to begin under the same key waits. It
// begins a call itself if the first call could not begin.
func TestKeyedWaits(t *testing.T) {
	t.Parallel()
	for _, why := range []error{nil, stream.ErrFull} {
		synctest.Test(t, func(t *testing.T) {
			h, d := diskHouse(t, Options{})
			pass := make(chan error)
			d.set(func([]stream.Record) error { return <-pass })
			s := h.able("") // a session with a resume policy, which is stored before its call begins
			var calls, attached, refused int
			var mu sync.Mutex
			var wg sync.WaitGroup
			for range 3 {
				wg.Go(func() {
					c, a, err := s.BeginOnce(Once{Key: "k"}, []byte("1"), []jsonrpc.Message{mcptest.Parse(request(1))})
					mu.Lock()
					defer mu.Unlock()
					switch {
					case err != nil:
						refused++
					case c != nil:
						calls++
					case a != nil && a.Number != 0:
						attached++
					}
				})
			}
			synctest.Wait()
			if calls+attached+refused > 0 {
				t.Errorf("%d calls, %d attached, %d refused, before the call has begun", calls, attached, refused)
			}
			pass <- why
			want := fmt.Sprint(1, 2, 0)
			if why != nil {
				pass <- why // the same append once more, alone
				pass <- nil // the error that ends the call
				pass <- nil // the policy of the second call
				want = fmt.Sprint(1, 1, 1)
			}
			wg.Wait()
			if got := fmt.Sprint(calls, attached, refused); got != want {
				t.Errorf("calls, attached and refused are %s, want %s", got, want)
			}
			close(pass)
		})
	}
}

// A key is free again when its call could not begin, also for requests that came meanwhile.
func TestKeyedNotBegun(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{SessionMax: 1}, nil)
	defer h.close()
	s := h.open("")
	link := h.desk.last()
	c := begin(t, s, false, request(1))
	<-link.in
	for range 3 {
		refusal(t, s, "k", request(2), ErrBusy)
	}
	link.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	first(t, s, "k", request(2))
	comesAgain(t, s, "k", request(2))

	h = newHouse(t, Options{}, nil)
	defer h.close()
	s = h.open("")
	c = begin(t, s, false, request(1))
	refusal(t, s, "k", request(1), ErrDuplicate)
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	c = first(t, s, "k", request(1))
	refusal(t, s, "other", request(1), ErrDuplicate)

	// This call has begun, and was not delivered.
	c.Abort([]jsonrpc.Message{mcptest.Parse(request(1))}, jsonrpc.Errorf(jsonrpc.CodeServer, "no"))
	first(t, s, "k", request(1))

	h.End(s)
	refusal(t, s, "last", request(9), ErrNotFound)
	h.Departure.Stop()
	refusal(t, s, "last", request(9), ErrClosing)
	if n, _ := h.keys.Len(); n != 1 {
		t.Errorf("%d keys are known, want 1", n)
	}
}

func TestKeyScope(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	alice, alice2, bob, nobody, nobody2 := h.open("alice"), h.open("alice"), h.open("bob"), h.open(""), h.open("")
	c := first(t, alice, "k", request(1))
	if a := comesAgain(t, alice2, "k", request(1)); a.Session != alice || a.Number != c.Number() {
		t.Error("attached to another call")
	}
	refusal(t, alice2, "k", request(2), idempotency.ErrReused)
	first(t, bob, "k", request(1))
	first(t, nobody, "k", request(1))
	first(t, nobody2, "k", request(1))
	// A principal's name that could be taken for a session's name.
	first(t, h.open(nobody.Name()), "k", request(1))
	comesAgain(t, nobody, "k", request(1))
}

func TestKeyedGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{}, nil)
		defer h.close()
		s := h.open("alice")
		done, running := first(t, s, "done", request(1)), first(t, s, "running", request(2))
		h.desk.last().say(done, `{"jsonrpc":"2.0","id":1,"result":{}}`)
		time.Sleep(9 * time.Minute)
		comesAgain(t, s, "done", request(1))
		time.Sleep(3 * time.Minute) // a finished call is kept for 10 minutes
		for range 2 {
			refusal(t, s, "done", request(1), idempotency.ErrGone)
			refusal(t, s, "done", request(7), idempotency.ErrReused)
			comesAgain(t, s, "running", request(2))
		}
		_ = running
		h.End(s)
		other := h.open("alice")
		refusal(t, other, "running", request(2), idempotency.ErrGone)
		keep := func(d time.Duration) { // keeps a session in use for d, so that it does not expire
			for end := time.Now().Add(d); time.Now().Before(end); {
				other.Touch()
				time.Sleep(5 * time.Minute)
			}
		}
		keep(23 * time.Hour)
		refusal(t, other, "running", request(2), idempotency.ErrGone)
		keep(2 * time.Hour)
		first(t, other, "running", request(2))
	})
}

// The registry forgets a key with the call that it names, or keeps a tombstone for a day.
func TestKeysForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: time.Hour}, nil)
		defer h.close()
		s, nobody := h.open("alice"), h.open("")
		link := h.desk.last()
		for i := range 100 {
			link.say(first(t, nobody, fmt.Sprint(i), request(i)), fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
		}
		first(t, s, "k", request(1))
		h.End(nobody)
		count := h.keys.Len
		time.Sleep(30 * time.Minute)
		if known, tombstones := count(); known != 1 || tombstones != 0 {
			t.Errorf("after the session: %d keys, %d tombstones", known, tombstones)
		}
		h.End(s)
		time.Sleep(30 * time.Minute)
		if known, tombstones := count(); known != 1 || tombstones != 1 {
			t.Errorf("after the named session: %d keys, %d tombstones", known, tombstones)
		}
		time.Sleep(25 * time.Hour)
		if known, tombstones := count(); known != 0 || tombstones != 0 {
			t.Errorf("after a day: %d keys, %d tombstones", known, tombstones)
		}
	})
}

// TestOnceForgotten lets other nodes forward requests: their names leave
// nothing behind, while a client's key does.
func TestOnceForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{TTL: 10 * time.Hour}, nil)
		defer h.close()
		s := h.open("alice")
		link := h.desk.last()
		first(t, s, "k", request(1000))
		for i := range 100 {
			msgs := []jsonrpc.Message{mcptest.Parse(request(i))}
			c, _, err := s.BeginOnce(Once{Name: fmt.Sprint(i)}, msgs[0].Raw, msgs)
			if err != nil {
				t.Fatal(err)
			}
			c.Deliver(t.Context(), msgs, nil)
			if i > 0 { // call 0 goes on
				link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
			}
		}
		h.keys.Sweep()
		again := []jsonrpc.Message{mcptest.Parse(request(1))}
		if _, known, err := s.BeginOnce(Once{Name: "1"}, again[0].Raw, again); known == nil || err != nil {
			t.Errorf("sent again at once: %v, %v", known, err)
		}
		time.Sleep(40 * time.Minute)
		known, tombstones := h.keys.Len()
		if known != 2 || tombstones != 0 { // k, and call 0
			t.Errorf("%d keys, %d tombstones", known, tombstones)
		}
	})
}

// TestKeysBounded makes more keyed calls than the registry remembers.
func TestKeysBounded(t *testing.T) {
	t.Parallel()
	testlong.OneGoroutine(t)
	testlong.Only(t, "it makes 140,000 calls")
	h := newHouse(t, Options{}, with(t, memory.Options{SessionBytes: 100 << 10}))
	defer h.close()
	s := h.open("alice")
	link := h.desk.last()
	const bound = 1 << 16 // of the registry's entries, and of its tombstones
	n := 2*bound + 10_000
	text := request(1)
	msgs, answer := []jsonrpc.Message{mcptest.Parse(text)}, mcptest.Parse(`{"jsonrpc":"2.0","id":1,"result":{}}`)
	for i := range n {
		c, _, err := s.BeginOnce(Once{Key: fmt.Sprint(i)}, []byte(text), msgs)
		if err != nil {
			t.Fatal(err)
		}
		link.sink.Emit(c, answer)
	}
	if most, _ := h.keys.Len(); most > 2*bound+1 || most < bound {
		t.Errorf("%d keys are known", most)
	}
	refusal(t, s, fmt.Sprint(n-20_000), text, idempotency.ErrGone)
	comesAgain(t, s, fmt.Sprint(n-1), text)
}

// A cancelled call is found by its key, and has no answer.
func TestKeyedCancelled(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	first(t, s, "k", request(1))
	cancel := mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	if err := s.Send(t.Context(), cancel, nil); err != nil {
		t.Fatal(err)
	}
	a := comesAgain(t, s, "k", request(1))
	if got := readAll(t, a.Session, a.Number); len(got) != 0 {
		t.Errorf("read %q", got)
	}
}

func TestKeyedBatch(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	msgs := []jsonrpc.Message{mcptest.Parse(request(1)), mcptest.Parse(request(2))}
	c, _, err := s.BeginOnce(Once{Key: "k"}, []byte("both"), msgs)
	if err != nil {
		t.Fatal(err)
	}
	_, a, err := s.BeginOnce(Once{Key: "k"}, []byte("both"), msgs)
	if err != nil || a == nil || a.Number != c.Number() {
		t.Fatal(a, err)
	}
	link := h.desk.last()
	link.say(c, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	link.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
	if got := readAll(t, s, a.Number); len(got) != 2 {
		t.Errorf("read %q", got)
	}
}

// TestAdvertised checks the initialize result that a client gets.
func TestAdvertised(t *testing.T) {
	t.Parallel()
	const says = `{"holdfast/idempotencyKey":{"header":"Idempotency-Key"}`
	for result, want := range map[string]string{
		`{"capabilities":{}}`: `{"capabilities":{"experimental":` + says + `}}}`,
		`{"capabilities":{"tools":{"a":1}, "experimental": {"x":{}} },"z":1.50}`:           `{"capabilities":{"tools":{"a":1}, "experimental": {"x":{},` + says[1:] + `} },"z":1.50}`,
		`{"instructions":"capabilities"}`:                                                  `{"instructions":"capabilities","capabilities":{"experimental":` + says + `}}}`,
		`{"capabilities":{"experimental":{"holdfast/idempotencyKey":{"header":"Other"}}}}`: `{"capabilities":{"experimental":` + says + `}}}`,
	} {
		const revision = `{"protocolVersion":"2025-11-25",`
		result, want = revision+result[1:], revision+want[1:]
		for _, o := range []Options{{}, {Shared: Shared{Stateless: true}}} {
			for _, single := range []bool{false, true} {
				want := want
				if single || o.Stateless {
					want = result
				}
				h := newHouse(t, o, nil)
				h.desk.initialized = result
				s, err := h.New(newRequest(), caller.Principal{}, single, nil)
				if err != nil {
					t.Fatal(err)
				}
				c := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
				answers, _ := c.Wait(t.Context(), 0)
				if single {
					mcptest.Eventually(t, "the answer", time.Minute, func() bool {
						return s.streams.Delivered() == 0 && s.streams.Oldest(t.Context(), 0) == 0 && s.standalone.said == 1
					})
					ready := make(chan struct{}, 1)
					r, err := s.Read(t.Context(), 0, 0, 0, ready)
					if err != nil {
						t.Fatal(err)
					}
					entries, err := r.Next(t.Context(), make([]stream.Entry, 0, 1))
					if err != nil || len(entries) != 1 {
						t.Fatal(entries, err)
					}
					answers = [][]byte{entries[0].Data}
					r.Detach(false, true, false)
				}
				if got := string(jsonrpc.Field(answers[0], "result")); got != want {
					t.Errorf("stateless %v, single %v: got %s, want %s", o.Stateless, single, got, want)
				}
				h.close()
			}
		}
	}
}
