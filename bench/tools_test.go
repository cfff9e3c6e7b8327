package bench

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"holdfast/bench/load"
	"holdfast/bench/tools"
)

// Both backends must do the same work: else their comparison says nothing.
func TestTools(t *testing.T) {
	for i := range rivals {
		r := &rivals[i]
		if r.bare || r.stream == "" {
			continue
		}
		paths := []string{r.stream, r.plain}
		if r.name == "go-sdk" { // the go-sdk fails a tool that sends notifications where the answer is JSON
			paths = paths[:1]
		}
		for _, path := range paths {
			t.Run(r.name+path, func(t *testing.T) { checkTools(t, r, path) })
		}
	}
}

func checkTools(t *testing.T, r *rival, path string) {
	h, end := r.open()
	defer end()
	server := httptest.NewServer(h)
	defer server.CloseClientConnections()
	addr := strings.TrimPrefix(server.URL, "http://")
	c, err := load.Dial(addr)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	session, err := c.Handshake(path)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range []struct {
		msg, want string
		events    int
	}{
		{msg: load.Echo(32), want: `"` + strings.Repeat("e", 32) + `"`},
		{msg: load.Progress(120, 7), want: `"done 120"`, events: 120},
		{msg: load.Slow(5), want: `"slept 5"`},
	} {
		req := load.Post(addr, path, session, tt.msg)
		for range i + 1 { // an id is used once in a session
			req.Next()
		}
		res, err := c.Do(req)
		if err == nil {
			err = res.Expect(200, tt.want)
		}
		if err != nil {
			t.Fatal(err)
		}
		if n := load.Events(res.Body); n != tt.events {
			t.Errorf("%d progress events, want %d", n, tt.events)
		}
		if tt.events > 0 && load.FirstEventID(res.Body) == "" {
			t.Errorf("events carry no id")
		}
	}
}

func TestStats(t *testing.T) {
	w := httptest.NewRecorder()
	tools.ServeStats(w, httptest.NewRequest(http.MethodGet, "/bench/stats?gc=1", nil))
	var s tools.Stats
	if err := json.Unmarshal(w.Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Goroutines == 0 || s.HeapInuse == 0 || s.StackInuse == 0 || s.HeapAlloc == 0 {
		t.Errorf("stats are %+v", s)
	}
}
