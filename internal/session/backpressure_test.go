package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/engine/memory"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// TestPace has a backend say much more than is kept, at once, to a reader that takes
// longer, to one that does not read, and to none. The first misses nothing, and the
// others hold nobody up.
func TestPace(t *testing.T) {
	t.Parallel()
	const messages = 100
	small := func(old stream.Store) stream.Store {
		_ = old.Close()
		return memory.New(memory.Options{StreamBytes: 1 << 20})
	}
	for _, x := range []struct {
		name  string
		reads int // messages; negative: nobody reads
	}{{"reads", messages + 1}, {"stops", 3}, {"nobody", -1}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // only waiting takes time
				h := newHouse(t, Options{}, small)
				defer h.close()
				s := h.open("")
				link := h.desk.last()
				c, err := s.Begin([]jsonrpc.Message{parse(request(1))}, false)
				if err != nil {
					t.Fatal(err)
				}
				ready := make(chan struct{}, 1)
				var r *Reader
				if x.reads >= 0 {
					if r, err = s.Read(t.Context(), c.Number(), 0, 0, ready); err != nil {
						t.Fatal(err)
					}
					defer r.Detach(false, false, false)
				}
				c.Deliver(t.Context(), []jsonrpc.Message{parse(request(1))}, nil)
				began, said := time.Now(), make(chan time.Duration, 1)
				go func() {
					text := strings.Repeat("x", 64<<10)
					for i := range messages {
						link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"n":%d,"x":%q}}`, i, text))
					}
					link.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
					said <- time.Since(began)
				}()
				got := 0
				for got < x.reads {
					var buf [4]stream.Entry
					entries, err := r.Next(t.Context(), buf[:0])
					if err != nil {
						t.Fatalf("after %d messages: %v", got, err)
					}
					if got += len(entries); len(entries) == 0 {
						<-ready
						continue
					}
					time.Sleep(2 * time.Millisecond) // it takes its time
					r.Delivered()
				}
				if d := <-said; d > mostPaced {
					t.Errorf("the backend was held up for %v", d)
				}
			})
		})
	}
}
