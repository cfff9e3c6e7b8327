package server_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/session"
	"holdfast/internal/testlong"
)

// A logbook keeps the lines of a log of level Info and above, with their attributes.
type logbook struct {
	mu    sync.Mutex
	lines []logLine
}

type logLine struct {
	level slog.Level
	text  string
	attrs map[string]slog.Value
}

func (l *logbook) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }
func (l *logbook) WithAttrs([]slog.Attr) slog.Handler               { return l }
func (l *logbook) WithGroup(string) slog.Handler                    { return l }

func (l *logbook) Handle(_ context.Context, r slog.Record) error {
	line := logLine{r.Level, r.Message, map[string]slog.Value{}}
	r.Attrs(func(a slog.Attr) bool { line.attrs[a.Key] = a.Value; return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line)
	return nil
}

// about returns the lines that contain one of the texts, and all lines of level Warn and above, except those of cluster.
func (l *logbook) about(texts ...string) (found []logLine) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.lines {
		is := line.level >= slog.LevelWarn && !strings.HasPrefix(line.text, "cluster: ")
		for _, text := range texts {
			is = is || strings.Contains(line.text, text)
		}
		if is {
			found = append(found, line)
		}
	}
	return found
}

// TestMovesAreCounted has a node with thirty sessions that is drained, killed, or stands still. Each node logs the
// sessions that it took over or gave up in at most three lines, with their number and the outcomes of their calls.
func TestMovesAreCounted(t *testing.T) {
	t.Parallel()
	const sessions, calls = 30, 5
	for _, x := range []struct {
		how         string
		calls       int // calls in flight
		came, went  string
		level       slog.Level // of the line about sessions taken over
		wentLevel   slog.Level
		unknown     int64
		long, names bool
	}{
		{how: "drained", came: "took over sessions that a node gave up", went: "gave up sessions", level: slog.LevelInfo, wentLevel: slog.LevelInfo},
		{how: "killed", calls: calls, came: "took over the sessions of a node that was lost", level: slog.LevelWarn, unknown: calls, names: true},
		{how: "stopped", calls: calls, came: "took over the sessions of a node that was lost", level: slog.LevelWarn, unknown: calls, names: true,
			went: "other nodes have taken sessions over", wentLevel: slog.LevelWarn, long: true},
	} {
		t.Run(x.how, func(t *testing.T) {
			if x.long {
				testlong.Only(t, "a node is missed after seconds")
			}
			t.Parallel()
			f := newFarm(t, 0, config{})
			logs := []*logbook{{}, {}}
			for _, l := range logs {
				f.start(config{server: server.Options{Shared: session.Shared{Logger: slog.New(l)}, UpgradeAfter: 1}})
			}
			a, b := f.nodes[0], f.nodes[1]
			mcptest.Eventually(t, "the nodes to know each other", time.Minute, func() bool { return knows(a, b) && knows(b, a) })
			peers := make([]*peer, sessions)
			for i := range peers {
				peers[i] = a.connect("2025-11-25", nil)
			}
			for i := range x.calls {
				w := peers[i].open("POST", "/mcp", call("hold", `{"key":"k"}`))
				w.head()
			}
			a.holds(x.calls)
			switch x.how {
			case "drained":
				if err := a.Drain(t.Context()); err != nil {
					t.Fatal(err)
				}
			case "killed":
				a.kill()
			case "stopped":
				a.handle.Cut(true)
			}
			mcptest.Eventually(t, "the node to be missed", time.Minute, func() bool { return x.how == "drained" || !knows(b, a) })
			for _, p := range peers {
				if r := p.at(b).post(ping1); r.status != 200 {
					t.Errorf("in a session that has moved: %d %s", r.status, r.body)
				}
			}
			if x.how == "stopped" {
				a.handle.Cut(false)
				for _, p := range peers { // the node notices the loss of an unused session at the next request for it
					_ = p.post(ping1)
				}
			}
			count := func(l *logbook, what, attr string) (n int64) {
				for _, line := range l.about(what) {
					if v := line.attrs[attr]; v.Kind() == slog.KindInt64 { // a slow machine has other warnings
						n += v.Int64()
					}
				}
				return n
			}
			// A slow machine moves the sessions in several turns, each with its line.
			const mostLines = 3
			mcptest.Eventually(t, "the line of what came", time.Minute, func() bool { return count(logs[1], "took over", "sessions") >= sessions })
			mcptest.Eventually(t, "the line of what went", time.Minute, func() bool { return x.went == "" || len(logs[0].about(x.went)) > 0 })
			came := logs[1].about("took over")
			if n := count(logs[1], x.came, "sessions"); n != sessions || len(came) > mostLines || came[0].level != x.level || count(logs[1], x.came, "outcome_unknown") != x.unknown {
				t.Errorf("the log of what came: %+v", came)
			}
			if x.names && came[0].attrs["node"].String() != a.handle.Node() {
				t.Errorf("the node that was lost is not named: %+v", came[0].attrs)
			}
			if x.went == "" {
				return
			}
			went := logs[0].about(x.went)
			if n := count(logs[0], x.went, "sessions"); len(went) > mostLines || went[0].level != x.wentLevel || n == 0 || n > sessions {
				t.Errorf("the log of what went: %+v", went)
			}
		})
	}
}
