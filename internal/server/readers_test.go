package server_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// TestGhost is failure 5: a connection that a proxy holds open after its client has left. The
// newest reader supersedes it at once and gets no 409, and the old connection is closed.
func TestGhost(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	for _, version := range []string{"2025-06-18", "2025-11-25"} {
		p := n.connect(version, nil)
		say := func(text string) {
			p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%q}}`, text))
		}
		say("zero")
		ghost := p.open("GET", "/mcp", "")
		last := ghost.message().ID
		for i, id := range []string{last, "", last} {
			var extra []string
			if id != "" {
				extra = []string{"Last-Event-ID: " + id}
			}
			next := p.open("GET", "/mcp", "", extra...)
			if s := next.head().StatusCode; s != 200 {
				t.Fatalf("%s: takeover answered %d", version, s)
			}
			for err := error(nil); !errors.Is(err, io.EOF); {
				if _, err = ghost.next(); err != nil && !errors.Is(err, io.EOF) {
					t.Fatalf("%s: the old connection ended with %v", version, err)
				}
			}
			if id != "" && i > 0 { // the messages that the old connection got come again
				next.message()
			}
			say("more")
			if ev := next.message(); !strings.Contains(string(ev.Data), "more") {
				t.Errorf("%s: got %s", version, ev.Data)
			}
			ghost = next
		}
		// The same for a call's stream.
		w := p.open("POST", "/mcp", call("steps", `{"n":1,"pause":1}`))
		first := w.message()
		call := p.open("POST", "/mcp", callAs("9", "ask", `{}`))
		asked := call.message()
		again := p.open("GET", "/mcp", "", "Last-Event-ID: "+asked.ID)
		again.head()
		for err := error(nil); err == nil; {
			if _, err = call.next(); err != nil && !errors.Is(err, io.EOF) {
				t.Errorf("%s: the old connection ended with %v", version, err)
			}
		}
		n.release(1)[0].Result(result("x"))
		if ev := again.message(); !strings.Contains(string(ev.Data), `"x"`) {
			t.Errorf("%s: got %s", version, ev.Data)
		}
		if first.ID == "" {
			t.Errorf("%s: no id", version)
		}
	}
}

// TestBadCursorDisturbsNobody is a reader with an event id that is no longer kept: it is refused,
// and does not end the connection of the present reader.
func TestBadCursorDisturbsNobody(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{memory: memory.Options{StreamBytes: 4 << 10}})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	held := n.release(1)
	for i := range 10 {
		progress(held[0], i, 1<<10)
		w.message()
	}
	r := p.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID).all()
	if r.status != 410 || !strings.Contains(string(r.body), "outcome unknown") {
		t.Errorf("a cursor before what is kept: %d %s", r.status, r.body)
	}
	held[0].Result(result("x"))
	if ev := w.message(); !strings.Contains(string(ev.Data), `"x"`) {
		t.Errorf("got %s", ev.Data)
	}
}

// TestSlowReader is failure 11: one reader stops reading. Other clients do not wait, memory stays
// bounded, and the reader gets the messages that it missed when it comes back, or an error if
// they are no longer kept.
func TestSlowReader(t *testing.T) {
	testlong.Only(t, "it waits for the time that a client has to read")
	t.Parallel()
	const bound = 16 << 20
	n := newNode(t, config{
		server: server.Options{WriteTimeout: 8 * time.Second}, // on a busy machine a good client may be slow
		memory: memory.Options{StreamBytes: bound},
	})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", call("hold", `{}`))
	_ = w.c.SetReadBuffer(64 << 10) // some systems buffer megabytes
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	held := n.release(1)
	const message = 64 << 10
	told := bound / 2 / message
	for i := 1; i <= told; i++ { // far more than socket buffers hold
		progress(held[0], i, message)
	}
	for i := range 20 { // meanwhile others are served
		if r := p.post(callAs(fmt.Sprint(i), "echo", `{"text":"quick"}`)); !strings.Contains(string(r.body), "quick") {
			t.Fatalf("got %d %s", r.status, r.body)
		}
	}
	n.sessionsQuiet() // the server has ended the connection that is not read
	w.c.Close()

	f := &follower{p: p, seen: map[string]bool{}, last: first.ID}
	w = f.again()
	for i, lost := 1, 0; i <= told; {
		ev, err := w.next()
		if err != nil { // on a busy machine this reader may be too slow as well, and comes back
			if lost++; lost > 20 {
				t.Fatal(err)
			}
			w.c.Close()
			w = f.again()
			continue
		}
		if ev.ID != "" {
			f.last = ev.ID
		}
		if len(ev.Data) == 0 {
			continue
		}
		if got := string(jsonrpc.Field(mcptest.Parse(string(ev.Data)).Params, "progress")); got != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, got)
		}
		i++
	}
	w.c.Close()
	n.sessionsQuiet()
	for i := 1; i <= 2*bound/message; i++ { // more than is kept
		progress(held[0], i, message)
	}
	if got := n.store.Bytes(); got > bound+message {
		t.Errorf("%d bytes are kept, more than %d", got, bound)
	}
	held[0].Result(result("x"))
	if r := f.again().all(); r.status != 410 || !strings.Contains(string(r.body), "outcome unknown") {
		t.Errorf("after too much: %d %s", r.status, r.body)
	}
}

// TestFinishRacesReplay is failure 4: calls end while a reader goes from the stored events to the
// new ones, and is cut, again and again. Every message arrives once and in order.
func TestFinishRacesReplay(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	const rounds, steps = 150, 20
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for round := range rounds {
		wg.Add(1)
		slots <- struct{}{}
		go func() {
			defer func() { <-slots; wg.Done() }()
			p := n.connect([]string{"2025-06-18", "2025-11-25"}[round%2], nil)
			f := &follower{p: p, seen: map[string]bool{}}
			w := p.open("POST", "/mcp", call("steps", fmt.Sprintf(`{"n":%d,"jitter":300}`, steps)))
			f.link = "/mcp" + strings.TrimPrefix(strings.SplitN(w.head().Header.Get("Link"), ">", 2)[0], "<")
			w.c.Close()
			w = f.again()
			for !f.done {
				if err := f.take(w.atMost(rand.N(3000), []cut{fin, rst, ghost}[rand.N(3)])); err != nil {
					t.Error(err)
					return
				}
				if !f.done {
					w = f.again()
				}
			}
			if err := f.check(steps); err != nil {
				t.Errorf("round %d: %v", round, err)
			}
		}()
	}
	wg.Wait()
}

// TestHalfOpenListener is a client that sends only the beginning of requests: other clients are
// served.
func TestHalfOpenListener(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	for range 50 {
		c, err := net.Dial("tcp", n.addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := fmt.Fprintf(c, "POST /mcp HTTP/1.1\r\nHost: %s\r\nContent-Length: 100\r\n\r\n{", n.addr); err != nil {
			t.Fatal(err)
		}
	}
	p := n.connect("2025-11-25", nil)
	if r := p.post(call("echo", `{"text":"a"}`)); r.status != 200 {
		t.Errorf("got %d", r.status)
	}
}

// TestTakeoverRepeatsNothing has a client without event ids that supersedes its own standalone
// stream just after each message: no message is lost or comes twice.
func TestTakeoverRepeatsNothing(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-06-18", nil)
	w := p.open("GET", "/mcp", "")
	w.head()
	for i := range 200 {
		if r := p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%d}}`, i)); r.status != 202 {
			t.Fatal(r.status)
		}
		if got := string(jsonrpc.Field(mcptest.Parse(string(w.message().Data)).Params, "data")); got != fmt.Sprint(i) {
			t.Fatalf("message %d is %s", i, got)
		}
		w = p.open("GET", "/mcp", "")
		w.head()
	}
}
