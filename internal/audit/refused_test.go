package audit

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/observe"
)

// deny reports a refused request.
func deny(l *Log, status int, d observe.Denied) {
	d.At = time.Now()
	observe.Observers{l}.Happened(observe.Refused{Reason: "a_reason", Status: status, Denied: &d})
}

// A request that is refused for lack of rights has a line with all that is known of it, in both
// forms. A request that is refused for another reason has none.
func TestRefused(t *testing.T) {
	t.Parallel()
	for _, lines := range []bool{false, true} {
		p := newPaper()
		opts := Options{Handler: p, Logger: slog.New(slog.DiscardHandler)}
		if lines {
			opts.Handler = &linePaper{paper: p}
		}
		l := New(opts)
		observe.Observers{l}.Happened(observe.Refused{Reason: "busy", Status: 429})
		deny(l, 401, observe.Denied{HTTP: "GET", Remote: "192.0.2.7"})
		deny(l, 403, observe.Denied{Server: "files", Principal: "ada", HTTP: "POST", Method: "tools/call", Tool: "a\n\"b", Remote: "::1"})
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := p.lines(t)
		for _, one := range all {
			if at, err := time.Parse(time.RFC3339Nano, one["time"].(string)); err != nil || time.Since(at) > time.Hour {
				t.Errorf("at %v, %v", one["time"], err)
			}
			delete(one, "time")
		}
		want := []map[string]any{
			{"level": "INFO", "msg": "refused", "http_method": "GET", "reason": "a_reason", "status": 401.0, "remote": "192.0.2.7"},
			{
				"level": "INFO", "msg": "refused", "server": "files", "principal": "ada", "http_method": "POST", "method": "tools/call", "tool": "a\n\"b",
				"reason": "a_reason", "status": 403.0, "remote": "::1",
			},
		}
		if fmt.Sprint(all) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", all, want)
		}
	}
}

// However many requests are refused, a second has few lines of them, and one line counts the others. Requests
// without a token leave room for the lines of requests with one.
func TestRefusedBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newPaper()
		l := New(Options{Handler: p, Logger: slog.New(slog.DiscardHandler)})
		const flood = 5000
		count := func() (anybody, proven, leftOut int, text string) {
			synctest.Wait()
			p.mu.Lock()
			defer p.mu.Unlock()
			for _, one := range p.lines(t) {
				switch n, tells := one["left_out"].(float64); {
				case tells:
					leftOut += int(n)
				case one["principal"] != nil:
					proven++
				default:
					anybody++
				}
			}
			return anybody, proven, leftOut, p.text.String()
		}
		for range flood {
			deny(l, 401, observe.Denied{})
		}
		for range mostRefused {
			deny(l, 403, observe.Denied{Principal: "ada"})
		}
		begin(l, "ping", "").End(0, observe.Result, 0)
		time.Sleep(900 * time.Millisecond)
		if anybody, proven, leftOut, text := count(); anybody != mostRefused+1 || proven != mostRefused || leftOut != 0 || !strings.Contains(text, `"ping"`) {
			t.Errorf("%d of anybody, the call's too, %d of ada, %d left out", anybody, proven, leftOut)
		}
		time.Sleep(200 * time.Millisecond) // the second is over, and no request comes
		if _, _, leftOut, text := count(); leftOut != flood-mostRefused || strings.Count(text, "left_out") != 1 {
			t.Errorf("%d are told to be left out", leftOut)
		}
		for range 3 * flood { // over three seconds
			deny(l, 401, observe.Denied{})
			time.Sleep(3 * time.Second / (3 * flood))
		}
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		anybody, _, leftOut, text := count()
		if lines := anybody - 1; lines > 5*mostRefused || lines+leftOut != 4*flood || strings.Count(text, "left_out") > 5 || l.Lost() != 0 {
			t.Errorf("%d lines and %d left out, of %d", lines, leftOut, 4*flood)
		}
	})
}
