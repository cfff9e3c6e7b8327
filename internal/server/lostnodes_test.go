package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"
)

// TestAllOfLostNodes drains or kills a node with many sessions of a principal.
// requests/getStatus/all lists all the principal's calls, ended or not, in pages, each once.
// Another principal's session is not taken over.
func TestAllOfLostNodes(t *testing.T) {
	t.Parallel()
	const many = 70 // more than a node takes over for one answer
	for _, how := range []string{"drained", "lost"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			f := newFarm(t, 3, config{})
			bob := f.nodes[0].able("2025-11-25", "bob")
			bob.post(callAs("1", "steps", `{"key":"bob","n":1}`))
			var work sync.WaitGroup
			var mu sync.Mutex
			want := map[string]bool{}
			slots := make(chan struct{}, 8)
			for range many {
				slots <- struct{}{}
				work.Go(func() {
					defer func() { <-slots }()
					w := f.nodes[0].able("2025-11-25", "me").open("POST", "/mcp", call("steps", `{"key":"k","n":1}`))
					token := w.token()
					w.all()
					mu.Lock()
					defer mu.Unlock()
					want[token] = true
				})
			}
			work.Wait()
			own := f.nodes[1].able("2025-11-25", "me") // a session of a node that lives
			w := own.open("POST", "/mcp", call("hold", `{}`))
			running := w.token()
			want[running] = true
			if how == "drained" {
				ctx, stop := context.WithTimeout(t.Context(), 20*time.Second)
				defer stop()
				if err := f.nodes[0].Drain(ctx); err != nil {
					t.Fatal(err)
				}
			} else {
				f.nodes[0].kill()
			}

			asks := own.astray().at(f.nodes[2])
			pages, cursor := 0, ""
			for ; pages == 0 || cursor != ""; pages++ {
				body := fmt.Sprintf(`{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all","params":{"cursor":%q}}`, cursor)
				if cursor == "" {
					body = `{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all"}`
				}
				r := asks.post(body)
				var page struct {
					Requests   []struct{ ResumeToken, Status string }
					NextCursor string
				}
				if err := json.Unmarshal([]byte(r.result(t)), &page); err != nil {
					t.Fatal(err)
				}
				for _, q := range page.Requests {
					if !want[q.ResumeToken] {
						t.Errorf("%s is not mine, or was told of before", q.ResumeToken)
					}
					delete(want, q.ResumeToken)
					if (q.Status == "processing") != (q.ResumeToken == running) {
						t.Errorf("%s: %s", q.ResumeToken, q.Status)
					}
				}
				cursor = page.NextCursor
			}
			if len(want) > 0 {
				t.Errorf("%d calls are missing", len(want))
			}
			if how == "drained" && pages != 2 {
				t.Errorf("%d pages", pages)
			}
			// The other principal's session was not taken over for the list.
			here := f.nodes[1].sessions.Sessions() + f.nodes[2].sessions.Sessions()
			if how == "drained" && here != many+1 {
				t.Errorf("%d sessions here, want %d", here, many+1)
			}
		})
	}
}
