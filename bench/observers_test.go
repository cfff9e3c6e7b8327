package bench

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/backend/message"
	"holdfast/bench/load"
	"holdfast/bench/tools"
)

// A discarder is a response that drops its body.
type discarder struct{ head http.Header }

func (d *discarder) Header() http.Header         { return d.head }
func (d *discarder) Write(p []byte) (int, error) { return len(p), nil }
func (d *discarder) WriteHeader(int)             {}
func (d *discarder) Flush()                      {}

// SetReadDeadline does nothing, as there is no connection.
func (d *discarder) SetReadDeadline(time.Time) error { return nil }

// BenchmarkObservers measures the cost of a light call in the process, without sockets, with each
// kind of observer: the median of many short rounds, in ns of CPU (other goroutines' included), and
// as a multiple of a call of the first kind in the same round. The call is one of the message
// backend; after "sdk." or "modern." it is one of an mcp.Server, in the legacy or the modern era.
func BenchmarkObservers(b *testing.B) {
	const calls = 4000 // of each kind, in a round
	kinds := strings.Fields(cmp.Or(os.Getenv("KINDS"), "none metrics audit both traces page page_open metrics_page"))
	call := make([]func(), len(kinds))
	for i, kind := range kinds {
		call[i] = observed(b, kind)
		for range calls {
			call[i]()
		}
	}
	allocs := make([]float64, len(kinds))
	for i := range kinds {
		allocs[i] = testing.AllocsPerRun(100, call[i])
	}
	took := make([][]float64, len(kinds))
	ratio := make([][]float64, len(kinds))
	for b.Loop() {
		for i := range kinds {
			before := cpuTime()
			for range calls {
				call[i]()
			}
			time.Sleep(15 * time.Millisecond) // gathered lines are written
			ns := float64(cpuTime()-before) / calls
			took[i] = append(took[i], ns)
			ratio[i] = append(ratio[i], ns/took[0][len(took[0])-1])
		}
	}
	for i, kind := range kinds {
		slices.Sort(took[i])
		slices.Sort(ratio[i])
		b.ReportMetric(took[i][len(took[i])/2], kind+"-ns/call")
		b.ReportMetric(ratio[i][len(ratio[i])/2], kind+"-x")
		b.ReportMetric(allocs[i], kind+"-allocs")
	}
}

// observed returns a function that makes a light call of a handler with observers.
func observed(b *testing.B, kind string) func() {
	b.Helper()
	backend, kind, ok := strings.Cut(kind, ".")
	if !ok {
		backend, kind = "message", backend
	}
	o := &holdfast.Options{Logger: slog.New(slog.DiscardHandler), Eras: holdfast.ErasBoth}
	switch kind {
	case "none":
	case "page":
		o.Page = http.NewServeMux()
	case "page_open":
		o.Page = http.NewServeMux()
		defer openPage(b, o.Page)
	case "traces":
		traced, end, err := tools.Trace(0.01)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(end)
		traced(o)
	default:
		observe, end, err := tools.Observe()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(end)
		observe(o, "bench")
		if kind == "metrics_page" {
			o.Page = http.NewServeMux()
		}
		if kind != "audit" && kind != "both" {
			o.Audit = nil
		}
		if kind == "audit" {
			o.Metrics = nil
		}
	}
	h := holdfast.NewBackendHandler(message.New(message.HandlerFunc(tools.Answer)), o)
	if backend != "message" {
		server := tools.NewServer()
		h = holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, o)
	}
	b.Cleanup(func() { _ = h.Shutdown(context.Background()) })
	post := func(text string, header ...string) func() http.Header {
		body := bytes.NewReader([]byte(text))
		r, err := http.NewRequest(http.MethodPost, "http://127.0.0.1/mcp", body)
		if err != nil {
			b.Fatal(err)
		}
		r.RemoteAddr = "127.0.0.1:1"
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}}
		for i := 0; i < len(header); i += 2 {
			r.Header[header[i]] = header[i+1 : i+2]
		}
		w := &discarder{head: http.Header{}}
		return func() http.Header {
			_, _ = body.Seek(0, io.SeekStart)
			clear(w.head)
			h.ServeHTTP(w, r)
			return w.head
		}
	}
	if backend == "modern" {
		call := post(load.ModernEcho(32), "Mcp-Protocol-Version", "2026-07-28", "Mcp-Method", "tools/call", "Mcp-Name", "echo")
		return func() { call() }
	}
	session := post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{}}}`)().Get("Mcp-Session-Id")
	known := []string{"Mcp-Session-Id", session, "Mcp-Protocol-Version", "2025-11-25"}
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`, known...)()
	post(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, known...)()
	call := post(load.Echo(32), known...)
	return func() { call() }
}

// openPage opens a live page, and reads its events. Their cost counts, too.
func openPage(b *testing.B, mux *http.ServeMux) {
	b.Helper()
	s := httptest.NewServer(mux)
	res, err := http.Get(s.URL + "/live/events") //nolint:bodyclose // who reads it closes it
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() { _ = res.Body.Close() }()
		_, _ = io.Copy(io.Discard, res.Body)
	}()
	b.Cleanup(func() {
		s.CloseClientConnections()
		<-done
		s.Close()
	})
}

// cpuTime returns the CPU time of the process so far.
func cpuTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
