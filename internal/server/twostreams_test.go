package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A listener is a client's standalone stream, which the client opens again whenever it ends.
type listener struct {
	p      *peer
	ids    bool // the client sends its last event id
	onEach func(text string)

	mu    sync.Mutex
	w     *wire
	opens int
	open  bool
	over  bool
	done  chan struct{}
}

// listen opens a stream, and opens it again until stop.
func (p *peer) listen(ids bool, onEach func(text string)) *listener {
	l := &listener{p: p, ids: ids, onEach: onEach, done: make(chan struct{})}
	opened := make(chan struct{})
	go l.run(sync.OnceFunc(func() { close(opened) }))
	p.n.t.Cleanup(l.stop)
	<-opened
	return l
}

func (l *listener) run(opened func()) {
	defer close(l.done)
	for last := ""; ; {
		var extra []string
		if last != "" && l.ids {
			extra = []string{"Last-Event-ID: " + last}
		}
		w := l.p.open("GET", "/mcp", "", extra...)
		l.mu.Lock()
		if l.w = w; l.over {
			l.mu.Unlock()
			return
		}
		l.opens++
		l.mu.Unlock()
		if w.head().StatusCode != http.StatusOK {
			l.p.n.t.Errorf("a stream was answered with %d: %s (last %s)", w.head().StatusCode, w.all().body, last)
		}
		l.mu.Lock()
		l.open = true
		l.mu.Unlock()
		opened()
		for {
			ev, err := w.next()
			if ev.ID != "" {
				last = ev.ID
			}
			if data := jsonrpc.String(jsonrpc.Field(ev.Data, "params", "data")); data != "" {
				l.onEach(data)
			}
			if err != nil {
				break
			}
		}
		w.c.Close()
		l.mu.Lock()
		l.open = false
		over := l.over
		l.mu.Unlock()
		if over {
			return
		}
	}
}

// stop ends the stream, and waits for its goroutine.
func (l *listener) stop() {
	l.mu.Lock()
	l.over = true
	if l.w != nil {
		l.w.c.Close()
	}
	l.mu.Unlock()
	<-l.done
}

// anotherNode is added to the number of streams for a client at a node that does not own its session.
const anotherNode = 100

// TestTwoStreams is a client with several standalone streams, each of which it opens again when it ends, as Gemini CLI
// does: they end each other three times, and then they stay. Each message comes on the newest alone. When that is
// closed, messages come on another.
func TestTwoStreams(t *testing.T) {
	t.Parallel()
	for _, streams := range []int{2, 4, 2 + anotherNode} {
		for _, version := range []string{"2025-06-18", "2025-11-25"} {
			for _, ids := range []bool{true, false} {
				t.Run(fmt.Sprintf("%d %s %v", streams, version, ids), func(t *testing.T) {
					t.Parallel()
					streams, p := streams, (*peer)(nil)
					if streams < anotherNode {
						p = newNode(t, config{}).connect(version, nil)
					} else {
						streams -= anotherNode
						f := newFarm(t, 2, config{})
						p = f.nodes[0].connect(version, nil).at(f.nodes[1])
					}
					var mu sync.Mutex
					got := map[string][]int{} // the streams that got a message
					var all []*listener
					opens := func() (sum, open int) {
						for _, l := range all {
							l.mu.Lock()
							sum += l.opens
							if l.open {
								open++
							}
							l.mu.Unlock()
						}
						return sum, open
					}
					for i := range streams {
						all = append(all, p.listen(ids, func(text string) {
							mu.Lock()
							defer mu.Unlock()
							got[text] = append(got[text], i)
						}))
					}
					heard := func(text string) (by []int) {
						mcptest.Eventually(t, "the message "+text, time.Minute, func() bool {
							mu.Lock()
							defer mu.Unlock()
							by = got[text]
							return len(by) > 0
						})
						return by
					}
					say := func(text string) {
						p.post(fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/unrelated","params":{"data":%q}}`, text))
					}
					mcptest.Eventually(t, "the streams to stay", time.Minute, func() bool { // once three have been ended
						sum, open := opens()
						return sum == streams+3 && open == streams
					})
					for i := range 20 {
						say(fmt.Sprint("m", i))
					}
					heard("m19")
					first := -1
					for i := range 20 {
						by := heard(fmt.Sprint("m", i))
						if len(by) != 1 || first >= 0 && by[0] != first {
							t.Errorf("message %d came on the streams %v, and the first on %d", i, by, first)
						}
						first = by[0]
					}
					if sum, open := opens(); sum != streams+3 || open != streams {
						t.Errorf("streams were opened %d times, and %d are open", sum, open)
					}
					// The newest stream is closed.
					all[first].stop()
					later := 0 // until the server knows that the stream is closed, messages go to it
					mcptest.Eventually(t, "a message at another stream", time.Minute, func() bool {
						say(fmt.Sprint("later", later))
						later++
						mu.Lock()
						defer mu.Unlock()
						for i := range later {
							for _, by := range got[fmt.Sprint("later", i)] {
								if by != first {
									return true
								}
							}
						}
						return false
					})
					// A stream that is opened then is the newest at once.
					w := p.open("GET", "/mcp", "")
					if w.head().StatusCode != http.StatusOK {
						t.Fatalf("a new stream: %d", w.head().StatusCode)
					}
					say("newest")
					for {
						if ev := w.message(); strings.Contains(string(ev.Data), "newest") {
							break
						}
					}
					// All streams end with the session.
					for _, l := range all {
						l.mu.Lock()
						l.over = true
						l.mu.Unlock()
					}
					if r := p.open("DELETE", "/mcp", "").all(); r.status != 204 {
						t.Errorf("DELETE: %d", r.status)
					}
					for _, l := range all {
						<-l.done
					}
				})
			}
		}
	}
}
