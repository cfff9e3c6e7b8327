package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/backpressure"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/reading"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// TestPace lets a backend emit many more messages than the store keeps, at once: to
// a slow reader, to one that stops reading, and to none. The slow reader misses no
// message, and the other two do not hold the backend up.
func TestPace(t *testing.T) {
	t.Parallel()
	const messages = 100
	small := func(old stream.Store) stream.Store {
		_ = old.Close()
		return memory.New(memory.Options{StreamBytes: 1 << 20})
	}
	for _, x := range []struct {
		name  string
		reads int // messages that the reader reads; negative: there is no reader
	}{{"reads", messages + 1}, {"stops", 3}, {"nobody", -1}} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { // only waiting takes time
				h := newHouse(t, Options{}, small)
				defer h.close()
				s := h.open("")
				link := h.desk.last()
				c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, false)
				if err != nil {
					t.Fatal(err)
				}
				ready := make(chan struct{}, 1)
				var r *reading.Reader
				if x.reads >= 0 {
					if r, err = s.Read(t.Context(), c.Number(), 0, 0, ready); err != nil {
						t.Fatal(err)
					}
					defer r.Detach(false, false, false)
				}
				c.Deliver(t.Context(), []jsonrpc.Message{mcptest.Parse(request(1))}, nil)
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
					time.Sleep(2 * time.Millisecond) // the reader is slow
					r.Delivered()
				}
				if d := <-said; d > backpressure.Most {
					t.Errorf("the backend was held up for %v", d)
				}
			})
		})
	}
}

// TestCrowd lets many calls emit together more than the store keeps in all, each to a reader
// that makes progress. No call loses a message that its reader has not read. No call is
// refused for lack of room, however few messages it has emitted.
func TestCrowd(t *testing.T) {
	t.Parallel()
	const calls, messages = 12, 150
	small := func(old stream.Store) stream.Store {
		_ = old.Close()
		return memory.New(memory.Options{StreamBytes: 512 << 10, TotalBytes: 2 << 20})
	}
	synctest.Test(t, func(t *testing.T) { // only waiting takes time
		h := newHouse(t, Options{}, small)
		defer h.close()
		for i := range calls {
			s := h.open(fmt.Sprint("client", i))
			link := h.desk.last()
			c, err := s.Begin([]jsonrpc.Message{mcptest.Parse(request(1))}, false)
			if err != nil {
				t.Fatal(err)
			}
			ready := make(chan struct{}, 1)
			r, err := s.Read(t.Context(), c.Number(), 0, 0, ready)
			if err != nil {
				t.Fatal(err)
			}
			c.Deliver(t.Context(), []jsonrpc.Message{mcptest.Parse(request(1))}, nil)
			go func() {
				text := strings.Repeat("x", 4<<10)
				for range messages {
					link.say(c, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/message","params":{"x":%q}}`, text))
					time.Sleep(time.Millisecond)
				}
				time.Sleep(time.Second) // all calls are in flight together
				link.say(c, `{"jsonrpc":"2.0","id":1,"result":{}}`)
			}()
			go func() {
				defer r.Detach(false, false, false)
				last := ""
				for got := 0; got < messages+1; {
					var buf [4]stream.Entry
					entries, err := r.Next(t.Context(), buf[:0])
					if err != nil {
						t.Errorf("call %d, after %d messages: %v", i, got, err)
						return
					}
					if got += len(entries); len(entries) == 0 {
						<-ready
						continue
					}
					last = string(entries[len(entries)-1].Data)
					time.Sleep(20 * time.Millisecond) // the reader is slow
					r.Delivered()
				}
				if last != `{"jsonrpc":"2.0","id":1,"result":{}}` {
					t.Errorf("call %d ended with %s", i, last)
				}
			}()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Minute)
	})
}
