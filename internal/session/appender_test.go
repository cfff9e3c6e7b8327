package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// disk is a store that a test can make full, or broken.
type disk struct {
	stream.Store
	mu     sync.Mutex
	refuse func([]stream.Record) error
}

func (d *disk) Append(ctx context.Context, l stream.Lease, records []stream.Record) error {
	d.mu.Lock()
	refuse := d.refuse
	d.mu.Unlock()
	if refuse != nil {
		if err := refuse(records); err != nil {
			return err
		}
	}
	return d.Store.Append(ctx, l, records)
}

func (d *disk) set(refuse func([]stream.Record) error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refuse = refuse
}

// full takes only short records that end a stream, as a full store does.
func full(records []stream.Record) error {
	for _, r := range records {
		if len(r.Data) > stream.Reserve {
			return stream.ErrFull
		}
	}
	if n := len(records); n == 0 || !records[n-1].Last {
		return stream.ErrFull
	}
	return nil
}

var errBroken = errors.New("disk is broken")

// brokenDisk takes no records.
func brokenDisk([]stream.Record) error { return errBroken }

func diskHouse(t *testing.T, o Options) (*house, *disk) {
	d := &disk{}
	h := newHouse(t, o, func(st stream.Store) stream.Store {
		d.Store = st
		return d
	})
	t.Cleanup(h.close)
	return h, d
}

// unknown checks that the answers are one "outcome unknown" error for each id, in any order.
func unknown(t *testing.T, answers []string, ids ...string) {
	t.Helper()
	left := make(map[string]bool)
	for _, id := range ids {
		left[id] = true
	}
	for _, text := range answers {
		m := mcptest.Parse(text)
		if !left[string(m.ID)] || !strings.Contains(string(m.Error), "outcome unknown") {
			t.Errorf("got %s", text)
		}
		delete(left, string(m.ID))
	}
	if len(left) > 0 {
		t.Errorf("no answer to %v", left)
	}
}

// When the store refuses a question on the standalone stream, where a session of 2024-11-05 has all of them, the server gets an error.
func TestRefusedQuestionAlone(t *testing.T) {
	t.Parallel()
	h, d := diskHouse(t, Options{})
	s := mcptest.Must(h.New(newRequest(), caller.Principal{}, true, nil))(t)
	link := h.desk.last()
	begin(t, s, true, `{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2024-11-05","capabilities":{"elicitation":{}}}}`)
	c := begin(t, s, false, request(1))
	link.next(t, "tools/call")
	d.set(full)
	link.say(c, `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`)
	select {
	case in := <-link.in:
		if string(in.ID) != `"q"` || in.Error == nil || s.asked.len() > 0 {
			t.Errorf("the server got %s; %d questions wait", in.Raw, s.asked.len())
		}
	case <-time.After(time.Minute):
		t.Fatalf("the server waits for ever; %d questions wait", s.asked.len())
	}
	d.set(nil)
	link.say(c, response(1))
	if got := readSome(t, s, standalone, 2); !strings.Contains(got[1], `"result"`) {
		t.Errorf("the client gets %q", got)
	}
}

// When the store refuses a call's messages, the server gets an error for the questions to the call's client, which will not answer them: those
// that the store has, and the one that it refuses.
func TestRefusedQuestions(t *testing.T) {
	t.Parallel()
	h, d := diskHouse(t, Options{})
	s := h.open("")
	link := h.desk.last()
	c := begin(t, s, false, request(1))
	link.next(t, "tools/call")
	link.say(c, `{"jsonrpc":"2.0","id":"first","method":"elicitation/create","params":{}}`)
	d.set(full)
	link.say(c, `{"jsonrpc":"2.0","id":"second","method":"elicitation/create","params":{}}`)
	waits := map[string]bool{`"first"`: true, `"second"`: true}
	for range 2 {
		select {
		case in := <-link.in:
			if !waits[string(in.ID)] || in.Error == nil {
				t.Errorf("the server got %s", in.Raw)
			}
			delete(waits, string(in.ID))
		case <-time.After(time.Minute):
			t.Fatalf("the server waits for ever for answers to %v", waits)
		}
	}
}

const big = `{"jsonrpc":"2.0","id":1,"result":{"text":"%s"}}`

// When the store refuses a call's messages, the call ends with "outcome
// unknown": both for connected clients and for clients that come back, whether
// the store takes this error or not.
func TestRefusedAppend(t *testing.T) {
	t.Parallel()
	stores := map[string]func([]stream.Record) error{"full": full, "broken": brokenDisk}
	says := map[string]string{
		"progress":     `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`,
		"result":       fmt.Sprintf(big, strings.Repeat("x", stream.Reserve)),
		"request":      `{"jsonrpc":"2.0","id":"q","method":"elicitation/create","params":{}}`,
		"long message": `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"` + strings.Repeat("x", 2*stream.Reserve) + `"}}`,
	}
	for name, refuse := range stores {
		for what, text := range says {
			for _, connected := range []bool{true, false} {
				for _, light := range []bool{true, false} {
					t.Run(fmt.Sprintf("%s, %s, connected %v, light %v", name, what, connected, light), func(t *testing.T) {
						t.Parallel()
						h, d := diskHouse(t, Options{})
						s := h.open("")
						c := begin(t, s, light, request(1))
						if light && connected {
							c.Promote()
						}
						d.set(refuse)
						if light && !connected {
							c.Promote() // no message has been emitted yet
						}
						ready := make(chan struct{}, 1)
						var r *reading.Reader
						if connected {
							var err error
							if r, err = s.Read(t.Context(), c.Number(), 0, 0, ready); err != nil {
								t.Fatal(err)
							}
							defer r.Detach(false, true, false)
							<-ready
							if entries, err := r.Next(t.Context(), make([]stream.Entry, 0, 1)); err != nil || len(entries) > 0 {
								t.Fatalf("got %+v and %v", entries, err)
							}
						}
						h.desk.last().say(c, text)
						if connected {
							select {
							case <-ready:
							case <-time.After(time.Minute):
								t.Fatal("the reader is not told")
							}
							unknown(t, toEnd(t, r, ready), "1")
						}
						unknown(t, readAll(t, s, c.Number()), "1") // a later reader
						// Later messages change nothing.
						h.desk.last().say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
						unknown(t, readAll(t, s, c.Number()), "1")
						if n := h.Calls(); n != 0 {
							t.Errorf("%d requests are in flight", n)
						}
					})
				}
			}
		}
	}
}

// A client reads the messages that were stored before the refusal first, each once.
func TestRefusedAppendLater(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func([]stream.Record) error{"full": full, "broken": brokenDisk} {
		h, d := diskHouse(t, Options{})
		s := h.open("")
		c := begin(t, s, false, request(1))
		const progress = `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`
		for range 3 {
			h.desk.last().say(c, progress)
		}
		d.set(refuse)
		h.desk.last().say(c, progress)
		said := readAll(t, s, c.Number())
		if len(said) != 4 {
			t.Fatalf("%s: got %q", name, said)
		}
		unknown(t, said[3:], "1")
		// The session goes on when the store has room again.
		d.set(nil)
		c = begin(t, s, false, request(2))
		h.desk.last().say(c, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		if said := readAll(t, s, c.Number()); len(said) != 1 || mcptest.Parse(said[0]).Error != nil {
			t.Errorf("%s: got %q", name, said)
		}
	}
}

// Every request of a batch is answered, also a request with a response that was not stored.
func TestRefusedBatch(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func([]stream.Record) error{"full": full, "broken": brokenDisk} {
		h, d := diskHouse(t, Options{})
		s := h.open("")
		c := begin(t, s, false, request(1), request(2), request(3))
		d.set(refuse)
		h.desk.last().say(c, `{"jsonrpc":"2.0","id":2,"result":{}}`)
		said := readAll(t, s, c.Number())
		if len(said) != 3 {
			t.Errorf("%s: got %q", name, said)
		}
		unknown(t, said, "1", "2", "3")
	}
}

// When the store refuses an append of several messages as a whole, only the
// messages that it cannot keep are lost.
func TestRefusedTurn(t *testing.T) {
	t.Parallel()
	h, d := diskHouse(t, Options{})
	s := h.open("")
	a := begin(t, s, false, request(1), request(2), request(4))
	b := begin(t, s, false, request(3))
	// Hold the first append, so that the others gather behind it.
	entered, release := make(chan struct{}), make(chan struct{})
	var first, late sync.Once
	d.set(func(records []stream.Record) error {
		first.Do(func() {
			close(entered)
			<-release
		})
		for _, r := range records {
			if strings.Contains(string(r.Data), "poison") {
				if len(records) == 1 { // meanwhile the server says another message
					late.Do(func() { h.desk.last().say(a, `{"jsonrpc":"2.0","id":4,"result":{}}`) })
				}
				return stream.ErrFull
			}
		}
		return nil
	})
	var held sync.WaitGroup
	held.Go(func() {
		h.desk.last().say(b, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`)
	})
	<-entered
	for _, x := range []struct {
		c    *Call
		text string
	}{
		{a, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`},
		{a, `{"jsonrpc":"2.0","id":2,"result":{"poison":1}}`},
		{b, `{"jsonrpc":"2.0","method":"notifications/progress","params":{}}`},
		{a, `{"jsonrpc":"2.0","id":1,"result":{}}`},
		{b, `{"jsonrpc":"2.0","id":3,"result":{}}`},
	} {
		h.desk.last().say(x.c, x.text)
	}
	close(release)
	held.Wait()
	said := readAll(t, s, a.Number())
	if len(said) != 4 || mcptest.Parse(said[0]).Kind != jsonrpc.Notification {
		t.Fatalf("got %q", said)
	}
	unknown(t, said[1:], "1", "2", "4")
	if said := readAll(t, s, b.Number()); len(said) != 3 || mcptest.Parse(said[2]).Result == nil {
		t.Errorf("got %q", said)
	}
}

// A cancelled call ends without an error, also where the store is full.
func TestRefusedCancel(t *testing.T) {
	t.Parallel()
	for name, refuse := range map[string]func([]stream.Record) error{"full": full, "broken": brokenDisk} {
		h, d := diskHouse(t, Options{})
		s := h.open("")
		c := begin(t, s, false, request(1))
		d.set(refuse)
		cancel := mcptest.Parse(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		if err := s.Send(t.Context(), cancel, nil); err != nil {
			t.Fatal(err)
		}
		if said := readAll(t, s, c.Number()); len(said) != 0 {
			t.Errorf("%s: got %q", name, said)
		}
	}
}

// On the stream of a 2024-11-05 session a response that is too large is replaced,
// and the stream goes on.
func TestRefusedSingle(t *testing.T) {
	t.Parallel()
	h, d := diskHouse(t, Options{})
	s, err := h.New(newRequest(), caller.Principal{}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.set(func(records []stream.Record) error {
		for _, r := range records {
			if len(r.Data) > 1000 {
				return stream.ErrFull
			}
		}
		return nil
	})
	c := begin(t, s, false, request(1))
	h.desk.last().say(c, fmt.Sprintf(big, strings.Repeat("x", 1000)))
	h.desk.last().say(c, `{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"`+strings.Repeat("x", 1000)+`"}}`)
	c = begin(t, s, false, request(2))
	h.desk.last().say(c, `{"jsonrpc":"2.0","id":2,"result":{}}`)
	r, err := s.Read(t.Context(), standalone, 0, 0, make(chan struct{}, 1))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Detach(false, true, false)
	entries, err := r.Next(t.Context(), make([]stream.Entry, 0, 8))
	if err != nil || len(entries) != 2 {
		t.Fatalf("got %+v and %v", entries, err)
	}
	unknown(t, []string{string(entries[0].Data)}, "1")
	if m := mcptest.Parse(string(entries[1].Data)); string(m.ID) != "2" || m.Result == nil {
		t.Errorf("got %s", entries[1].Data)
	}
}

// Messages that goroutines emit at the same time are each stored once, without
// a gap. The messages of one goroutine keep their order.
func TestAppendConcurrently(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	s := h.open("")
	const calls, talkers, each = 4, 4, 50
	var all []*Call
	var talking sync.WaitGroup
	for i := range calls {
		c := begin(t, s, i%2 == 0, request(i))
		all = append(all, c)
		var said sync.WaitGroup
		for who := range talkers {
			talk := func() {
				for n := range each {
					h.desk.last().say(c, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"who":%d,"n":%d}}`, who, n))
				}
			}
			said.Add(1)
			talking.Go(func() {
				defer said.Done()
				talk()
			})
		}
		talking.Go(func() {
			said.Wait()
			h.desk.last().say(c, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"result":{}}`, i))
		})
	}
	talking.Wait()
	for i, c := range all {
		said := readAll(t, s, c.Number())
		if len(said) != talkers*each+1 {
			t.Fatalf("call %d: %d messages", i, len(said))
		}
		next := make(map[string]int)
		for _, text := range said[:talkers*each] {
			p := mcptest.Parse(text).Params
			who, n := string(jsonrpc.Field(p, "who")), string(jsonrpc.Field(p, "n"))
			if n != fmt.Sprint(next[who]) {
				t.Fatalf("call %d: got %s, want %d", i, p, next[who])
			}
			next[who]++
		}
	}
	if st := h.store.(*memory.Store); st.Bytes() == 0 {
		t.Error("nothing was stored")
	}
}

// InOneAppend may be nested, also across goroutines: nothing is appended before the
// last of them returns, and then all queued messages are.
func TestTogether(t *testing.T) {
	t.Parallel()
	for _, nested := range []bool{false, true} { // whether the last to begin is the first to return
		h := newHouse(t, Options{}, nil)
		s := h.open("")
		c := begin(t, s, false, request(1))
		r := attach(t, s, c.Number())
		begun, done := make(chan struct{}), make(chan struct{})
		var other sync.WaitGroup
		s.log.InOneAppend(func() {
			other.Go(func() {
				s.log.InOneAppend(func() {
					close(begun)
					h.desk.last().say(c, response(1))
					if !nested {
						<-done
					}
				})
			})
			<-begun
			if nested {
				other.Wait()
			}
			if got, err := r.Next(t.Context(), make([]stream.Entry, 0, 1)); len(got) > 0 || err != nil {
				t.Errorf("nested %v: read %d, %v before all was queued", nested, len(got), err)
			}
		})
		close(done)
		other.Wait()
		r.Detach(false, true, false)
		if got := readAll(t, s, c.Number()); len(got) != 1 {
			t.Errorf("nested %v: read %q", nested, got)
		}
		h.close()
	}
}
