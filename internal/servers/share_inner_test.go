package servers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/backend"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A script is a server below a shared one. It answers initialize and tools/list, and with does also calls.
type script struct {
	only string        // the revision that it speaks; "": any
	gate chan struct{} // Open waits for it; nil: it does not wait
	hold chan struct{} // Deliver of a call waits for it
	full bool          // Deliver of a call fails after that
	does bool          // calls are answered
	list string        // the tools; "": none
	mute bool          // initialize is not answered

	mu    sync.Mutex
	open  []string // the revisions of the open conversations
	heard []string // calls and cancellations
	meta  string   // of the last call
	opens int
	conns []*scriptConn // all conversations that were opened
}

func (f *script) Open(_ context.Context, _ backend.Start, sink backend.Sink) (backend.Conn, error) {
	if f.gate != nil {
		<-f.gate
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.opens++
	c := &scriptConn{f: f, sink: sink}
	f.conns = append(f.conns, c)
	return c, nil
}

type scriptConn struct {
	f        *script
	sink     backend.Sink
	revision string
}

func (c *scriptConn) Deliver(in backend.Inbound) error {
	if in.Method == "tools/call" && c.f.hold != nil {
		<-c.f.hold
		if c.f.full {
			return errors.New("the pipe is broken")
		}
	}
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	result := ""
	switch in.Method {
	case "initialize":
		c.revision = jsonrpc.String(jsonrpc.Field(in.Params, "protocolVersion"))
		if c.f.only != "" {
			c.revision = c.f.only
		}
		c.f.open = append(c.f.open, c.revision)
		if c.f.mute {
			return nil
		}
		result = fmt.Sprintf(`{"protocolVersion":%q,"capabilities":{"tools":{}},"serverInfo":{"name":%q,"version":"1"}}`, c.revision, "s"+c.revision)
	case "tools/list":
		result = `{"tools":[` + c.f.list + `]}`
	case "tools/call":
		c.f.heard = append(c.f.heard, "call "+string(jsonrpc.Field(in.Params, "name")))
		c.f.meta = string(jsonrpc.Field(in.Params, "_meta"))
		if c.f.does {
			result = `{"content":[]}`
		}
	case "notifications/cancelled":
		c.f.heard = append(c.f.heard, "cancelled")
	}
	if result != "" {
		m, _ := jsonrpc.Parse(jsonrpc.AppendResult(nil, in.ID, []byte(result)))
		go c.sink.Emit(nil, m)
	}
	return nil
}

func (c *scriptConn) Close() error {
	c.f.mu.Lock()
	defer c.f.mu.Unlock()
	if i := slices.Index(c.f.open, c.revision); i >= 0 {
		c.f.open = slices.Delete(c.f.open, i, i+1)
	}
	return nil
}

// saw returns the open conversations, and the calls and cancellations that came.
func (f *script) saw() (open, heard string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	slices.Sort(f.open)
	return strings.Join(f.open, " "), strings.Join(f.heard, ", ")
}

// A reader is the sink of a session of a shared server.
type reader struct {
	t    *testing.T
	conn backend.Conn
	call backend.Call // the call of its messages; may be nil

	mu  sync.Mutex
	got []string
}

func (r *reader) Emit(_ backend.Call, m jsonrpc.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.got = append(r.got, string(m.Raw))
}
func (r *reader) EmitUnrelated(m jsonrpc.Message) { r.Emit(nil, m) }
func (r *reader) Closed(error, bool)              {}

// say delivers a message, waits until all goroutines are idle, and returns the messages that the session got.
func (r *reader) say(text string) string {
	r.t.Helper()
	m := mcptest.Must(jsonrpc.Parse([]byte(text)))(r.t)
	mcptest.Check(r.t, r.conn.Deliver(backend.Inbound{Message: m, Context: r.t.Context(), Call: r.call}))
	synctest.Wait()
	return r.heard()
}

// heard returns the messages that the session got since heard was last called.
func (r *reader) heard() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	got := strings.Join(r.got, "\n")
	r.got = nil
	return got
}

// join opens a session of a shared server.
func join(t *testing.T, s *shared) *reader {
	t.Helper()
	r := &reader{t: t}
	conn := mcptest.Must(s.Open(t.Context(), backend.Start{}, r))(t)
	r.conn = conn
	return r
}

func (r *reader) leave() {
	r.t.Helper()
	if err := r.conn.Close(); err != nil {
		r.t.Error(err)
	}
	synctest.Wait()
}

func helloOf(revision string) string { return mcptest.Initialize(revision, "{}") }

func toolCall(id int) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t%d"}}`, id, id)
}

const cancelSeven = `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":7}}`

func shareOf(f *script, linger time.Duration) *shared {
	return newShared(f, slog.New(slog.DiscardHandler), func() time.Duration { return linger })
}

// A shared server that does not answer initialize is waited for 60 s. Then all its sessions get an error, the server is ended,
// and the next session begins another.
func TestShareOpeningBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &script{mute: true}
		s := shareOf(f, 0)
		defer s.close()
		first, second := join(t, s), join(t, s)
		first.say(helloOf("2025-11-25"))
		time.Sleep(30 * time.Second)
		second.say(helloOf("2025-11-25"))
		time.Sleep(29 * time.Second)
		synctest.Wait()
		for _, r := range []*reader{first, second} {
			if got := r.heard(); got != "" {
				t.Errorf("before its time: %s", got)
			}
		}
		time.Sleep(time.Second)
		synctest.Wait()
		for i, r := range []*reader{first, second} {
			if got := r.heard(); !strings.Contains(got, "has not answered initialize within 1m0s") {
				t.Errorf("session %d is told: %s", i, got)
			}
		}
		if open, _ := f.saw(); open != "" {
			t.Errorf("conversations are left: %s", open)
		}
		f.mu.Lock()
		f.mute = false
		f.mu.Unlock()
		if got := second.say(helloOf("2025-11-25")); !strings.Contains(got, `"result"`) {
			t.Errorf("the next one: %s", got)
		}
		first.leave()
		second.leave()
	})
}

// A call that is cancelled while the server opens is not made. A call that is cancelled while it
// is delivered is cancelled at the server after that.
func TestShareCancelEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &script{gate: make(chan struct{})}
		s := shareOf(f, 0)
		defer s.close()
		r := join(t, s)
		for _, text := range []string{toolCall(7), cancelSeven, toolCall(8)} {
			if got := r.say(text); got != "" {
				t.Errorf("before the server is open: %s", got)
			}
		}
		close(f.gate)
		synctest.Wait()
		if _, heard := f.saw(); heard != `call "t8"` {
			t.Errorf("the server heard %s", heard)
		}
		r.leave()
	})
	synctest.Test(t, func(t *testing.T) {
		f := &script{hold: make(chan struct{})}
		s := shareOf(f, 0)
		defer s.close()
		r := join(t, s)
		for _, text := range []string{toolCall(7), cancelSeven} { // the delivery of the call waits
			r.say(text)
		}
		close(f.hold)
		synctest.Wait()
		if _, heard := f.saw(); heard != `call "t7", cancelled` {
			t.Errorf("the server heard %s", heard)
		}
		r.leave()
	})
}

// A progress token that is null, as some libraries write it for none, is none: a shared server gets no other in its place.
func TestShareTokenNull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &script{}
		s := shareOf(f, 0)
		defer s.close()
		r := join(t, s)
		for token, same := range map[string]bool{`null`: true, `"p"`: false} {
			meta := `{"progressToken":` + token + `}`
			r.say(`{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"t","_meta":` + meta + `}}`)
			if (f.meta == meta) != same {
				t.Errorf("the server gets %s for %s", f.meta, meta)
			}
		}
		r.leave()
	})
}

// An unsentCall is a call that notes that no server has its request.
type unsentCall struct {
	backend.Call
	is bool
}

func (c *unsentCall) NotTaken() { c.is = true }

// If a shared server ends while it is being sent a request, the outcome of the request is unknown only if the server has got it. If it has
// not, the call hears so, and its client may make it again under the same key.
func TestShareEndsAmidRequest(t *testing.T) {
	for full, want := range map[bool]string{true: "the server did not take the request: the pipe is broken", false: "outcome unknown: it fell"} {
		synctest.Test(t, func(t *testing.T) {
			f := &script{hold: make(chan struct{}), full: full}
			s := shareOf(f, 0)
			defer s.close()
			r, of := join(t, s), &unsentCall{}
			r.call = of
			r.say(toolCall(7)) // Deliver of the call waits
			f.conns[0].sink.Closed(errors.New("it fell"), true)
			synctest.Wait()
			if got := r.heard(); got != "" {
				t.Errorf("before it is known whether the server has it: %s", got)
			}
			close(f.hold)
			synctest.Wait()
			if got := r.heard(); strings.Count(got, `"id":7`) != 1 || !strings.Contains(got, want) {
				t.Errorf("the session is told %s; want %s", got, want)
			}
			if of.is != full {
				t.Errorf("full %v: the call hears that no server has it: %v", full, of.is)
			}
			r.leave()
		})
	}
}

// A shared server ends when no session has it open and no client has used it for stopIdle, or,
// without that, for some minutes. It is opened again when a session needs it.
func TestShareEnds(t *testing.T) {
	for linger, want := range map[time.Duration]time.Duration{0: sharedLinger, 10 * time.Minute: 10 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			f := &script{}
			s := shareOf(f, linger)
			defer s.close()
			one, two := join(t, s), join(t, s)
			one.say(helloOf("2025-11-25"))
			two.say(helloOf("2025-11-25"))
			one.leave()
			time.Sleep(2 * want)
			two.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			if open, _ := f.saw(); open != "2025-11-25" || f.opens != 1 {
				t.Fatalf("beside a session that has it open: %q, opened %d times", open, f.opens)
			}
			two.leave()
			time.Sleep(want - time.Second)
			synctest.Wait()
			if open, _ := f.saw(); open != "2025-11-25" {
				t.Errorf("it ended too early: %q", open)
			}
			three := join(t, s) // this session keeps the server open
			time.Sleep(2 * want)
			synctest.Wait()
			if open, _ := f.saw(); open != "2025-11-25" {
				t.Errorf("it ended beside a session: %q", open)
			}
			three.leave() // the server was not used for long
			time.Sleep(time.Second)
			synctest.Wait()
			if open, _ := f.saw(); open != "" {
				t.Errorf("open without sessions: %q", open)
			}
			four := join(t, s)
			if got := four.say(helloOf("2025-11-25")); !strings.Contains(got, `"result"`) || f.opens != 2 {
				t.Errorf("opened again %d times: %s", f.opens, got)
			}
			five := join(t, s) // a session of another revision
			five.say(helloOf("2025-06-18"))
			four.leave()
			time.Sleep(2 * want)
			synctest.Wait()
			if open, _ := f.saw(); open != "2025-06-18" {
				t.Errorf("open beside a session of 2025-06-18: %q", open)
			}
			five.leave()
		})
	}
}

// Clients get the server's answers for a revision that both speak. There is one conversation
// for each revision that the server speaks.
func TestShareRevisions(t *testing.T) {
	for _, c := range []struct {
		only string
		want map[string]string // the revision in the answer, by the client's revision
		open string
	}{
		{"", map[string]string{"2025-11-25": "2025-11-25", "2025-06-18": "2025-06-18", "2025-03-26": "2025-03-26", "2031-01-01": "2025-11-25"}, "2025-03-26 2025-06-18 2025-11-25"},
		{"2025-06-18", map[string]string{"2025-11-25": "2025-06-18", "2025-06-18": "2025-06-18", "2024-11-05": "2025-06-18"}, "2025-06-18"},
	} {
		synctest.Test(t, func(t *testing.T) {
			f := &script{only: c.only}
			s := shareOf(f, 0)
			defer s.close()
			for range 2 {
				for asks, want := range c.want {
					r := join(t, s)
					got := r.say(helloOf(asks))
					if !strings.Contains(got, `"protocolVersion":"`+want+`"`) || !strings.Contains(got, `"name":"s`+want+`"`) {
						t.Errorf("a client of %s got %s; want the server's answer of %s", asks, got, want)
					}
					if got := r.say(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`); !strings.Contains(got, `"tools":[]`) {
						t.Errorf("tools for %s: %s", asks, got)
					}
					r.leave()
				}
			}
			if open, _ := f.saw(); open != c.open {
				t.Errorf("conversations of %s are open; want %s", open, c.open)
			}
		})
	}
}

// Calls, cancellations, ends of sessions and ends of the server may come in any order: a
// call gets one response, and a cancelled call at most one.
func TestShareMeets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &script{does: true}
		s := shareOf(f, 0)
		const sessions, calls = 20, 40
		var work sync.WaitGroup
		for i := range sessions {
			work.Go(func() {
				r := join(t, s)
				deliver := func(text string) {
					m, err := jsonrpc.Parse([]byte(text))
					if err == nil {
						err = r.conn.Deliver(backend.Inbound{Message: m, Context: t.Context()})
					}
					if err != nil {
						t.Error(err)
					}
				}
				revision := []string{"2025-11-25", "2025-06-18"}[i%2]
				deliver(helloOf(revision))
				for id := 1; id <= calls; id++ {
					deliver(toolCall(id))
					if id%5 == 0 {
						deliver(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id))
					}
					if id%8 == i%8 {
						time.Sleep(time.Millisecond)
					}
				}
				time.Sleep(time.Second) // all calls have been answered
				r.mu.Lock()
				got := strings.Join(r.got, "\n")
				r.mu.Unlock()
				for id := range calls + 1 {
					n := strings.Count(got, fmt.Sprintf(`"id":%d,`, id))
					if n > 1 || n == 0 && (id == 0 || id%5 != 0) {
						t.Errorf("call %d of session %d has %d responses", id, i, n)
					}
				}
				if err := r.conn.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		for range 5 { // the server ends meanwhile
			time.Sleep(time.Millisecond)
			f.mu.Lock()
			conns := f.conns
			f.conns = nil
			f.mu.Unlock()
			for _, c := range conns {
				c.sink.Closed(errors.New("it fell"), true)
			}
		}
		work.Wait()
		s.close()
	})
}
