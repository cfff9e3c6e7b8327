package holdfast_test

import (
	"bufio"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/internal/mcptest"
)

// Behind a proxy all clients have one address. With a MaxShare of 1 they may have all of the
// memory, for stored messages and for running requests, and by default three quarters of it.
func TestMaxShareOfMemory(t *testing.T) {
	t.Parallel()
	const (
		memory   = 16 << 20 // 12 MiB of it for stored messages, 4 for messages on their way
		sessions = 11
	)
	for share, whole := range map[float64]bool{0: false, 1: true} {
		t.Run(fmt.Sprint(share), func(t *testing.T) {
			t.Parallel()
			release, given := make(chan struct{}), make(chan struct{}, 2*sessions)
			text := strings.Repeat("x", 1<<20)
			h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(func(x *message.Exchange) {
				switch x.Method {
				case "initialize":
					x.Result([]byte(`{"protocolVersion":"2025-11-25","capabilities":{"tools":{}},"serverInfo":{"name":"s","version":"1"}}`))
				case "tools/list":
					x.Result([]byte(`{"tools":[]}`))
				case "tools/call":
					if len(x.Params) > 1000 {
						<-release
					}
					x.Result([]byte(`{"content":[{"type":"text","text":"` + text + `"}]}`))
					given <- struct{}{}
				}
			})), &holdfast.Options{Memory: memory, MaxShare: share, Response: holdfast.ResponseSSE, Logger: slog.New(slog.DiscardHandler)})
			web := httptest.NewServer(h)
			defer web.Close()
			defer func() {
				now, stop := context.WithTimeout(context.Background(), 0) // the clients that have left do not come back
				defer stop()
				_ = h.Shutdown(now)
			}()
			post := func(id, body string) *http.Response {
				res, err := mcptest.Send(t.Context(), http.MethodPost, web.URL, body, "Mcp-Session-Id", id)
				if err != nil {
					t.Fatal(err)
				}
				return res
			}
			began := func() string {
				return mcptest.Post(t, web.URL, mcptest.Initialize("2025-11-25", "{}")).Session()
			}
			// No client has read these results: the connection is closed after the first event's id.
			var firsts [sessions]string
			var ids [sessions]string
			for i := range sessions {
				ids[i] = began()
				res := post(ids[i], `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"t"}}`)
				for lines := bufio.NewScanner(res.Body); firsts[i] == "" && lines.Scan(); {
					firsts[i] = strings.TrimPrefix(lines.Text(), "id: ")
				}
				res.Body.Close()
				<-given // the event id comes before the result
			}
			again := func(i int) int {
				r, err := mcptest.Exchange(t.Context(), http.MethodGet, web.URL, "", "Mcp-Session-Id", ids[i], "Last-Event-Id", firsts[i])
				if r.Status == 0 {
					t.Fatal(err)
				}
				return r.Status
			}
			if got := again(0); (got == http.StatusOK) != whole {
				t.Errorf("the first of %d results of 1 MiB that nobody has read: %d", sessions, got)
			}

			// These requests run.
			taken := 0
			for i := range 4 {
				res := post(ids[0], fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"t","arguments":{"x":"%s"}}}`, 10+i, text[:900<<10]))
				defer res.Body.Close()
				if res.StatusCode == http.StatusOK {
					taken++
				}
			}
			if (taken == 4) != whole {
				t.Errorf("%d requests run of 900 KiB each", taken)
			}
			close(release)
		})
	}
}
