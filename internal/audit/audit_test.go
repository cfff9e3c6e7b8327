package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"holdfast/internal/observe"
	_ "holdfast/internal/testlong" // the flag -long
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// paper is a handler over a buffer that may fail.
type paper struct {
	slog.Handler
	mu      sync.Mutex
	text    bytes.Buffer
	flushed int
	err     error
	hold    chan struct{} // Handle waits for it; nil: Handle does not wait
}

func newPaper() *paper {
	p := &paper{}
	p.Handler = slog.NewJSONHandler(&p.text, nil)
	return p
}

func (p *paper) Handle(ctx context.Context, r slog.Record) error {
	if p.hold != nil {
		<-p.hold
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return p.err
	}
	return p.Handler.Handle(ctx, r)
}

func (p *paper) Flush() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flushed++
	return nil
}

// lines returns the lines that were written.
func (p *paper) lines(t *testing.T) (all []map[string]any) {
	t.Helper()
	for text := range strings.Lines(p.text.String()) {
		var one map[string]any
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		all = append(all, one)
	}
	return all
}

// begin begins a call of a method.
func begin(l *Log, method, params string) *observe.Watch {
	w := &observe.Watch{Call: observe.Call{Session: "s", ID: "1", Method: method}}
	observe.Observers{l}.Begin(w, []byte(params), nil)
	return w
}

func TestLine(t *testing.T) {
	t.Parallel()
	const params = `{"name":"send","arguments":{"to":"a secret"},"_meta":{"x":1}}`
	for _, arguments := range []bool{false, true} {
		p := newPaper()
		l := New(Options{Handler: p, Arguments: arguments, Logger: slog.New(slog.DiscardHandler)})
		w := &observe.Watch{Call: observe.Call{
			Session: "s1", Server: "mail", Principal: "alice", ID: "1", Method: "tools/call", Tool: "send", Revision: "2025-11-25",
			Trace: observe.Trace{Parent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, BytesIn: 70, Again: true,
		}}
		observe.Observers{l}.Begin(w, []byte(params), nil)
		w.Stored(3)
		w.Came(&observe.Reader{})
		w.Came(&observe.Reader{})
		w.Append(3, observe.Appended{Seq: 1, Data: make([]byte, 30)})
		w.Settle(3, "1", observe.Error, -32602)
		w.End(3, observe.Cancelled, 0)
		begin(l, "ping", "").Leave(0)
		if err := l.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		all := p.lines(t)
		if len(all) != 1 || p.flushed == 0 {
			t.Fatalf("%d lines, flushed %d times", len(all), p.flushed)
		}
		got := all[0]
		if at, err := time.Parse(time.RFC3339Nano, got["time"].(string)); err != nil || time.Since(at) > time.Hour {
			t.Errorf("at %v, %v", got["time"], err)
		}
		if s := got["seconds"].(float64); s < 0 || s > 60 {
			t.Errorf("took %v s", s)
		}
		delete(got, "time")
		delete(got, "seconds")
		want := map[string]any{
			"level": "INFO", "msg": "call", "server": "mail", "principal": "alice", "session": "s1", "method": "tools/call", "tool": "send",
			"outcome": "error", "code": -32602.0, "connections": 2.0, "bytes_in": 70.0, "bytes_out": 30.0, "stream": 3.0,
			"revision": "2025-11-25", "taken_over": true, "trace_id": "0af7651916cd43dd8448eb211c80319c",
		}
		if arguments {
			want["arguments"] = map[string]any{"to": "a secret"}
		} else if strings.Contains(p.text.String(), "secret") {
			t.Error("the arguments are in it")
		}
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("got  %v\nwant %v", got, want)
		}
	}
}

// linePaper is a handler that takes encoded lines.
type linePaper struct {
	*paper
	pages int
}

func (p *linePaper) WriteLines(lines []byte) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages++
	p.text.Write(lines)
	return p.err
}

// A handler that takes lines gets the lines of many calls at once. Lines that it refuses are counted.
func TestLines(t *testing.T) {
	t.Parallel()
	p := &linePaper{paper: newPaper()}
	l := New(Options{Handler: p, Arguments: true, Logger: slog.New(slog.DiscardHandler)})
	const calls = 500
	var work sync.WaitGroup
	for i := range calls {
		work.Go(func() {
			begin(l, "tools/call", fmt.Sprintf(`{"arguments":{"n":%d}}`, i)).End(0, observe.Result, 0)
		})
	}
	work.Wait()
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	seen := make(map[any]bool)
	for _, one := range p.lines(t) {
		seen[one["arguments"].(map[string]any)["n"]] = true
	}
	if len(seen) != calls || p.pages >= calls || l.Lost() != 0 {
		t.Errorf("%d calls in %d pages, %d lost", len(seen), p.pages, l.Lost())
	}

	p = &linePaper{paper: newPaper()}
	p.err = errors.New("disk full")
	l = New(Options{Handler: p, Logger: slog.New(slog.DiscardHandler)})
	begin(l, "ping", "").End(0, observe.Result, 0)
	if err := l.Close(t.Context()); err != nil || l.Lost() != 1 {
		t.Errorf("%d lost, %v", l.Lost(), err)
	}
}

// Arguments of any size do not break a line.
func TestLongArguments(t *testing.T) {
	t.Parallel()
	p := newPaper()
	l := New(Options{Handler: p, Arguments: true, Logger: slog.New(slog.DiscardHandler)})
	begin(l, "tools/call", `{"arguments":{"x":"`+strings.Repeat("y", 2*mostArguments)+`"}}`).End(0, observe.Result, 0)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	all := p.lines(t)
	if len(all) != 1 || all[0]["arguments_cut"] != true || len(all[0]["arguments"].(string)) != mostArguments {
		t.Errorf("%d lines", len(all))
	}
}

// No call waits for its line: a line beyond the bound is lost, counted, and reported to the operator.
func TestLost(t *testing.T) {
	t.Parallel()
	p := newPaper()
	p.hold = make(chan struct{})
	var said bytes.Buffer
	l := New(Options{Handler: p, Logger: slog.New(slog.NewTextHandler(&said, nil))})
	const most, more = 100, 5
	l.most = most
	end := func(n int) {
		for range n {
			begin(l, "ping", "").End(0, observe.Result, 0)
		}
	}
	end(1)
	for deadline := time.Now().Add(time.Minute); ; { // until the first line is being written
		l.mu.Lock()
		n := len(l.waiting)
		l.mu.Unlock()
		if n == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is written")
		}
		time.Sleep(time.Millisecond)
	}
	end(most + more)
	close(p.hold)
	if err := l.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	end(1)
	if n := len(p.lines(t)); n != most+1 || l.Lost() != more+1 {
		t.Errorf("%d lines, %d lost", n, l.Lost())
	}
	if !strings.Contains(said.String(), "lines of the audit were lost") || strings.Count(said.String(), "\n") != 1 {
		t.Errorf("the operator was told %q", said.String())
	}

	p = newPaper()
	p.err = errors.New("disk full")
	l = New(Options{Handler: p, Logger: slog.New(slog.DiscardHandler)})
	begin(l, "ping", "").End(0, observe.Result, 0)
	if err := l.Close(t.Context()); err != nil || l.Lost() != 1 {
		t.Errorf("%d lost, %v", l.Lost(), err)
	}
}

// Waiting lines are bounded in bytes, too, as a client chooses the length of a tool's name.
func TestLostBytes(t *testing.T) {
	t.Parallel()
	p := newPaper()
	p.hold = make(chan struct{})
	l := New(Options{Handler: p, Logger: slog.New(slog.DiscardHandler)})
	name := strings.Repeat("x", mostBytes/8)
	for range 24 { // some of them are being written
		w := &observe.Watch{Call: observe.Call{ID: "1", Method: "tools/call", Tool: name}}
		observe.Observers{l}.Begin(w, nil, nil)
		w.End(0, observe.Result, 0)
	}
	if lost := l.Lost(); lost < 24-2*8 {
		t.Errorf("%d lines lost of 24 with an eighth of the bound each", lost)
	}
	close(p.hold)
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

// Close waits for a handler that does not return, until its context ends.
func TestCloseBounded(t *testing.T) {
	t.Parallel()
	p := newPaper()
	p.hold = make(chan struct{})
	l := New(Options{Handler: p, Logger: slog.New(slog.DiscardHandler)})
	begin(l, "ping", "").End(0, observe.Result, 0)
	ctx, stop := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer stop()
	if err := l.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("closed with %v", err)
	}
	close(p.hold)
	if err := l.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
