package session

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/feature/hosts"
	"holdfast/internal/mcptest"
)

// A request whose progress token is null has none: its client gets no progress of our own.
func TestProgressTokenNull(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := newHouse(t, Options{ProgressEvery: func(hosts.Host) time.Duration { return time.Second }}, nil)
		defer h.close()
		s := h.open("")
		for i, want := range []int{0, 4} {
			c := begin(t, s, false, strings.Replace(request(i), `"name":"x"`, `"name":"x","_meta":{"progressToken":`+[]string{"null", `"t"`}[i]+`}`, 1))
			time.Sleep(4*time.Second + time.Second/2)
			h.desk.last().say(c, response(i))
			if said := readAll(t, s, c.Number()); len(said) != want+1 {
				t.Errorf("the client got %q, want %d notifications", said, want)
			}
		}
	})
}

// A call that is made again after a take-over counts its progress anew. Its client
// gets only values greater than all it has got before (2025-11-25, Progress).
func TestTakeOverProgress(t *testing.T) {
	t.Parallel()
	for _, single := range []bool{false, true} {
		t.Run(fmt.Sprint("single ", single), func(t *testing.T) {
			t.Parallel()
			f := newShelf()
			nodes := []*fleetNode{f.add(t, "a", safeTools()), f.add(t, "b", safeTools()), f.add(t, "c", safeTools())}
			s, err := nodes[0].New(newRequest(), caller.At("", "alice"), single, nil)
			if err != nil {
				t.Fatal(err)
			}
			initialize := begin(t, s, true, `{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{"roots":{},"sampling":{},"elicitation":{}}}}`)
			mcptest.Eventually(t, "initialize", time.Minute, initialize.IsOver)
			first := begin(t, s, single, tokenRequest(1, "t"))
			progress := func(token string, value any) string {
				return fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%q,"progress":%v}}`, token, value)
			}
			var want []string
			said := 0
			for i, n := range nodes {
				if i > 0 {
					nodes[i-1].kill()
					s = n.take(s)
					mcptest.Eventually(t, "a backend", time.Minute, func() bool { return n.desk.opened() == 1 })
				}
				link := n.desk.last()
				call := link.next(t, "tools/call").Call
				for value := 1; value <= 2+i; value++ {
					if i == 2 {
						link.say(nil, progress("t", value)) // as a backend does that does not name the call
					} else {
						link.say(call, progress("t", value))
					}
					if value > said {
						said = value
						want = append(want, progress("t", value))
					}
				}
				if odd := progress("t", `"odd"`); i == 1 {
					link.say(call, odd)
					want = append(want, odd)
				}
			}
			last := nodes[2].desk.last()
			last.say(nil, `{"jsonrpc":"2.0","id":1,"result":"x"}`)
			want = append(want, `"result":"x"`)
			if !single {
				wantTexts(t, "all", readAll(t, s, first.Number()), want...)
				// A later call may use the token again.
				second := begin(t, s, false, tokenRequest(2, "t"))
				last.say(second, progress("t", 1))
				last.say(second, `{"jsonrpc":"2.0","id":2,"result":"y"}`)
				wantTexts(t, "the next call", readAll(t, s, second.Number()), progress("t", 1), `"result":"y"`)
				return
			}
			ready := make(chan struct{}, 1)
			r, err := s.Read(t.Context(), 0, 0, 0, ready)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Detach(false, true, false)
			want = append([]string{`"id":"i"`}, want...)
			wantTexts(t, "single", some(t, r, ready, len(want)), want...)
		})
	}
}

func tokenRequest(id int, token string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"safe","_meta":{"progressToken":%q}}}`, id, token)
}
