// Package audit writes a line for each call that has ended: the principal, the method, the tool, the time
// it took, the number of connections, and how the call ended; and lines for requests that were refused
// with status 401 or
// 403. It is an observer ([observe.Observer]).
package audit

import (
	"bytes"
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// Options configure a [Log].
type Options struct {
	// Handler is required. A handler with a method WriteLines([]byte) error gets lines of JSON instead of
	// records, several at a time: the lines are those of [slog.JSONHandler], at a fraction of the cost. It
	// must not keep the bytes. If the handler has a method Flush() error, that is called after the last of
	// several records.
	Handler   slog.Handler
	Arguments bool         // lines also have the arguments of tools and prompts
	Logger    *slog.Logger // for the operator; required
}

const (
	// mostLines and mostBytes bound the lines that wait to be written. Further lines are lost, as
	// no call waits for its line.
	mostLines = 100_000
	mostBytes = 64 << 20
	// mostArguments is how many bytes of arguments are written.
	mostArguments = 64 << 10
	// mostText is about how many bytes are written at a time.
	mostText = 1 << 20
	// mostSpare is for how many lines memory is kept while none wait.
	mostSpare = 4096
	// gather is how long lines are gathered, to be written together.
	gather = 10 * time.Millisecond
	// complainEvery is the least time between two reports of lost lines to the operator.
	complainEvery = 10 * time.Second
)

// A Log writes the lines, in the order in which calls ended. Its caller must close it.
type Log struct {
	opts  Options
	lines interface{ WriteLines([]byte) error } // the handler, if it takes lines; else nil
	most  int                                   // lines that may wait
	lost  atomic.Uint64
	bound refusals
	ready chan struct{}
	quit  chan struct{}
	done  chan struct{}

	mu      sync.Mutex
	waiting []line
	bytes   int  // the size of these lines
	closed  bool // further lines are lost

	// Used by run only.
	attrs      record   // of the line that is handled
	text       jsonLine // of the lines that are written
	complained time.Time
	told       uint64 // how many lost lines the operator was told of
}

// New returns a log.
func New(opts Options) *Log {
	l := &Log{opts: opts, most: mostLines, ready: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	l.lines, _ = opts.Handler.(interface{ WriteLines([]byte) error })
	go l.run()
	return l
}

// Lost returns how many lines were lost.
func (l *Log) Lost() uint64 { return l.lost.Load() }

// Close writes the lines that wait, until ctx is done.
func (l *Log) Close(ctx context.Context) error {
	l.stopRefusals()
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	select {
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Began implements [observe.Observer].
func (l *Log) Began(c *observe.Call, params []byte) observe.CallObserver {
	if l.opts.Arguments && (c.Method == protocol.MethodCallTool || c.Method == protocol.MethodGetPrompt) {
		if arguments := jsonrpc.Field(params, "arguments"); arguments != nil {
			return &withArguments{l, masked(bytes.Clone(arguments[:min(len(arguments), mostArguments+1)]))}
		}
	}
	return (*withoutArguments)(l)
}

// Happened implements [observe.Observer].
func (l *Log) Happened(e observe.Event) {
	if r, ok := e.(observe.Refused); ok && r.Denied != nil {
		l.refused(r)
	}
}

// withoutArguments is the [observe.CallObserver] of calls without arguments in their lines.
type withoutArguments Log

// Happened implements [observe.CallObserver].
func (*withoutArguments) Happened(*observe.Call, observe.Event) {}

// Ended implements [observe.CallObserver].
func (o *withoutArguments) Ended(c *observe.Call, e observe.End) { (*Log)(o).ended(c, e, nil) }

// withArguments is the [observe.CallObserver] of a call with arguments in its line.
type withArguments struct {
	l         *Log
	arguments []byte
}

// Happened implements [observe.CallObserver].
func (*withArguments) Happened(*observe.Call, observe.Event) {}

// Ended implements [observe.CallObserver].
func (o *withArguments) Ended(c *observe.Call, e observe.End) { o.l.ended(c, e, o.arguments) }

// ended queues the line of a call. A call that has left this node gets its line at the node where it ends.
func (l *Log) ended(c *observe.Call, e observe.End, arguments []byte) {
	if e.Outcome == observe.Left {
		return
	}
	l.queue(line{at: e.At, call: c, end: e, connections: c.Connections(), bytesOut: c.BytesOut(), arguments: arguments})
}

// queue adds a line to those that wait to be written, if there is room.
func (l *Log) queue(x line) {
	size := x.size()
	l.mu.Lock()
	if l.closed || len(l.waiting) >= l.most || l.bytes+size > mostBytes {
		l.mu.Unlock()
		l.lost.Add(1)
		return
	}
	l.waiting = append(l.waiting, x)
	l.bytes += size
	first := len(l.waiting) == 1
	l.mu.Unlock()
	if first {
		select {
		case l.ready <- struct{}{}:
		default:
		}
	}
}

// run writes lines until the log is closed.
func (l *Log) run() {
	defer close(l.done)
	var spare []line
	for {
		select {
		case <-l.ready:
			t := time.NewTimer(gather)
			select {
			case <-t.C:
			case <-l.quit:
			}
			t.Stop()
		case <-l.quit:
		}
		l.mu.Lock()
		waiting, closed := l.waiting, l.closed
		l.waiting, l.bytes = spare[:0], 0
		l.mu.Unlock()
		l.write(waiting)
		clear(waiting)
		if spare = waiting; cap(spare) > mostSpare {
			spare = nil
		}
		if closed {
			return
		}
	}
}

// write writes lines, and tells the operator how many were lost.
func (l *Log) write(all []line) {
	var err error
	if len(all) > 0 && l.lines != nil {
		err = l.writeJSON(all)
	} else if len(all) > 0 {
		err = l.handle(all)
	}
	lost := l.lost.Load()
	if now := time.Now(); lost > l.told && now.Sub(l.complained) >= complainEvery {
		l.opts.Logger.Error("lines of the audit were lost", "lines", lost-l.told, "error", err)
		l.complained, l.told = now, lost
	}
}

// writeJSON gives lines to the handler, as text.
func (l *Log) writeJSON(all []line) (failed error) {
	for len(all) > 0 {
		n := 0
		for l.text = l.text[:0]; n < len(all) && len(l.text) < mostText; n++ {
			x := &all[n]
			l.text.begin(x.at, x.message())
			x.write(&l.text)
			l.text.end()
		}
		if err := l.lines.WriteLines(l.text); err != nil {
			failed = err
			l.lost.Add(uint64(n)) //nolint:gosec // a count; or some of them
		}
		all = all[n:]
	}
	if cap(l.text) > 2*mostText {
		l.text = nil
	}
	return failed
}

// handle gives records to the handler.
func (l *Log) handle(records []line) (failed error) {
	written := uint64(0)
	for i := range records {
		x := &records[i]
		l.attrs = l.attrs[:0]
		x.write(&l.attrs)
		r := slog.NewRecord(x.at, slog.LevelInfo, x.message(), 0)
		r.AddAttrs(l.attrs...) // copies them
		if err := l.opts.Handler.Handle(context.Background(), r); err != nil {
			failed = err
			l.lost.Add(1)
			continue
		}
		written++
	}
	if h, ok := l.opts.Handler.(interface{ Flush() error }); ok && written > 0 {
		if err := h.Flush(); err != nil {
			failed = err
			l.lost.Add(written) // or some of them
		}
	}
	return failed
}
