package holdfast_test

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/metrics"
)

// TestPageActionsAreLogged requests actions of the live page, with the token, without it and with wrong ones. Each request has a line in the
// log with the action and its sender, and a figure. After ten wrong tokens no token from that address is accepted, not even the right one.
func TestPageActionsAreLogged(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	var log mcptest.Log
	registry := prometheus.NewRegistry()
	mux := http.NewServeMux()
	h := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)), Page: mux, PageToken: "s3cret", PageDrain: func() {}, Metrics: metrics.New(registry),
	})
	mux.Handle("/mcp", h)
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	mcptest.Post(t, s.URL+"/mcp", mcptest.Initialize("2025-11-25", "{}"))
	session := onPage(t, s.URL, func(v *pageView) (name string) {
		for _, one := range v.Sessions {
			name = one.Name
		}
		return name
	})
	ask := func(method, path, token, body string) (int, http.Header) {
		t.Helper()
		resp, err := mcptest.Send(t.Context(), method, s.URL+path, body, "Holdfast-Admin-Token", token)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK { // a 200 is the stream of a page
			_, _ = io.ReadAll(resp.Body)
		}
		return resp.StatusCode, resp.Header
	}
	const acted, wrong = `msg="an operator has acted on the live page" `, `level=WARN msg="a wrong token for the live page was refused" address=127.0.0.1`
	for _, step := range []struct {
		path, token, body string
		status            int
		line, figure      string
	}{
		{"/live/action", "s3cret", `{"action":"end","session":"` + session + `"}`, 204, `level=INFO ` + acted + `action=end address=127.0.0.1 session=` + session, `page_actions_total{action="end",result="done"} 1`},
		{"/live/action", "s3cret", `{"action":"end","session":"gone"}`, 409, `level=WARN ` + acted + `action=end address=127.0.0.1 session=gone error="it is not here any more"`, `page_actions_total{action="end",result="failed"} 1`},
		{"/live/action", "s3cret", `{"action":"cancel","call":":9"}`, 409, `level=WARN ` + acted + `action=cancel address=127.0.0.1 call=:9 error=`, `page_actions_total{action="cancel",result="failed"} 1`},
		{"/live/action", "s3cret", `{"action":"cut","call":":9"}`, 409, `level=WARN ` + acted + `action=cut address=127.0.0.1 call=:9 error=`, `page_actions_total{action="cut",result="failed"} 1`},
		{"/live/action", "s3cret", `{"action":"drain"}`, 204, `level=INFO ` + acted + `action=drain address=127.0.0.1`, `page_actions_total{action="drain",result="done"} 1`},
		{"/live/action", "s3cret", `{"action":"burn\n"}`, 409, `level=WARN ` + acted + `action=unknown address=127.0.0.1 error="there is no such action"`, `page_actions_total{action="unknown",result="failed"} 1`},
		{"/live/action", "", `{"action":"drain"}`, 403, `level=WARN msg="an action on the live page was refused: its token is missing" address=127.0.0.1`, `page_refusals_total{reason="missing"} 1`},
		{"/live/action", "guess-1", `{"action":"drain"}`, 403, wrong, `page_refusals_total{reason="wrong"} 1`},
		{"/live/events", "guess-2", "", 403, wrong, `page_refusals_total{reason="wrong"} 2`},
	} {
		before := len(log.String())
		method := http.MethodPost
		if step.body == "" {
			method = http.MethodGet
		}
		if status, _ := ask(method, step.path, step.token, step.body); status != step.status {
			t.Errorf("%s %s with %q: status %d, want %d", step.path, step.body, step.token, status, step.status)
		}
		if lines := log.String()[before:]; !strings.Contains(lines, step.line) || strings.Count(lines, "live page") != 1 {
			t.Errorf("%s %s with %q: logged %s, want %s", step.path, step.body, step.token, lines, step.line)
		}
		if all := mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, s.URL+"/metrics", ""))(t).Body; !strings.Contains(all, "holdfast_"+step.figure+"\n") {
			t.Errorf("%s %s with %q: no %s", step.path, step.body, step.token, step.figure)
		}
	}
	var work sync.WaitGroup // simultaneous guesses do not get more tries
	var mu sync.Mutex
	got := make(map[int]int)
	for i := range 30 {
		work.Go(func() {
			status, _ := ask(http.MethodPost, "/live/action", fmt.Sprint("guess-", 3+i), `{"action":"drain"}`)
			mu.Lock()
			defer mu.Unlock()
			got[status]++
		})
	}
	work.Wait()
	if got[403] != 8 || got[429] != 22 {
		t.Errorf("after two wrong tokens, 30 more were answered with %v", got)
	}
	for _, path := range []string{"/live/action", "/live/events"} {
		method := map[string]string{"/live/action": http.MethodPost, "/live/events": http.MethodGet}[path]
		if status, head := ask(method, path, "s3cret", `{"action":"drain"}`); status != 429 || head.Get("Retry-After") == "" {
			t.Errorf("%s with the right token: status %d, Retry-After %q", path, status, head.Get("Retry-After"))
		}
	}
	if status, _ := ask(http.MethodGet, "/live/events", "", ""); status != http.StatusOK {
		t.Errorf("looking without a token: status %d", status)
	}
	if n := strings.Count(log.String(), "too many wrong tokens"); n != 1 {
		t.Errorf("%d lines say that there are too many", n)
	}
	if all := mcptest.Must(mcptest.Exchange(t.Context(), http.MethodGet, s.URL+"/metrics", ""))(t).Body; !strings.Contains(all, `page_refusals_total{reason="limited"} 24`) || !strings.Contains(all, `page_refusals_total{reason="wrong"} 10`) {
		t.Errorf("figures: %s", regexp.MustCompile(`(?m)^holdfast_page.*$`).FindAllString(all, -1))
	}
	if regexp.MustCompile(`s3cret|guess`).MatchString(log.String()) {
		t.Errorf("the log has a token: %s", log.String())
	}
	if err := h.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
}
