package outagelog

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/internal/mcptest"
)

// A log keeps the logged lines, without times.
type log struct{ mcptest.Log }

// take returns the lines since the last call.
func (l *log) take() []string {
	synctest.Wait()
	return l.TakeLines()
}

func (l *log) want(t *testing.T, when string, lines ...string) {
	t.Helper()
	if got := l.take(); fmt.Sprint(got) != fmt.Sprint(lines) {
		t.Errorf("%s the log has\n%q, want\n%q", when, got, lines)
	}
}

var errAway = errors.New("connection refused")

// begin returns an Outage with 7 calls in flight, and its log.
func begin(lost string) (*Outage, *log) {
	l := &log{}
	h := slog.NewTextHandler(l, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == "since" {
			return slog.Attr{}
		}
		return a
	}})
	return New(Options{
		Logger: slog.New(h), Attrs: []any{"url", "here"}, Away: "away", Still: "still", Back: "back", Lost: lost,
		Calls: func() int { return 7 }, Confirm: time.Second,
	}), l
}

const (
	goes  = `level=WARN msg=away url=here calls_waiting=7 error="connection refused"`
	stays = `level=WARN msg=still url=here calls_waiting=7 for=%s error="connection refused"`
)

// TestOutage has the watched engine or server fail and come back: there are two lines, the second with the losses of the time between them,
// and none if it was away for a moment.
func TestOutage(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, l := begin("")
		x.Failed(errAway)
		time.Sleep(900 * time.Millisecond)
		x.Reached()
		time.Sleep(time.Hour)
		l.want(t, "after a moment")

		x.Failed(errAway)
		time.Sleep(time.Second)
		l.want(t, "away", goes)
		for range 90 {
			x.Failed(errAway)
			x.Refused()
			time.Sleep(100 * time.Millisecond)
		}
		x.Ended(2, 1)
		x.LostSession()
		x.TookOver(3, 1)
		x.Reached()
		time.Sleep(time.Second)
		x.Reached()
		x.Ended(1, 0)
		l.want(t, "back just now")
		time.Sleep(time.Second)
		l.want(t, "back", "level=INFO msg=back url=here for=10s requests_refused=90 outcome_unknown=4 calls_failed=1 sessions_lost=1 sessions_taken_over=1 calls_again=3")

		time.Sleep(time.Hour)
		x.Failed(errAway) // this is the only request
		time.Sleep(24 * time.Hour)
		l.want(t, "away, and not tried", goes)
		x.Reached()
		x.Close()
		l.want(t, "closed", "level=INFO msg=back url=here for=24h0m0s")
	})
}

// TestCertain has operations fail for a moment while Certain is set: the two lines are logged all the same.
func TestCertain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, l := begin("")
		x.o.Certain = true
		for range 3 {
			x.Failed(errAway)
			x.Refused()
			x.Reached()
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		l.want(t, "after a moment", goes+" requests_refused=3")
		time.Sleep(time.Minute)
		l.want(t, "back", "level=INFO msg=back url=here for=200ms requests_refused=3")
		if x.Covers() {
			t.Error("it is back for long")
		}
		for i := range 7200 {
			if x.Reached(); i%60 == 0 {
				x.Failed(errAway)
			}
			x.Reached()
			time.Sleep(time.Second)
		}
		if all := l.take(); len(all) > 20 {
			t.Errorf("%d lines in two hours with a failure each minute", len(all))
		}
		x.Close()
	})
}

// TestStays has the outage last: lines become rarer and rarer, however many tries there are.
func TestStays(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, l := begin("")
		for range 4*3600 - 60 {
			x.Failed(errAway)
			time.Sleep(time.Second)
		}
		want := []string{goes}
		for _, after := range []string{"1m0s", "10m0s", "1h0m0s", "2h0m0s", "3h0m0s"} {
			want = append(want, fmt.Sprintf(stays, after))
		}
		l.want(t, "after four hours", want...)
		x.Close()
	})
}

// TestFlaps has many short outages: there are some lines, and then no more than for one long outage.
func TestFlaps(t *testing.T) {
	t.Parallel()
	for _, each := range []time.Duration{1500 * time.Millisecond, 5 * time.Second, 30 * time.Second, 3 * time.Minute} {
		t.Run(each.String(), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				x, l := begin("")
				for range 2 * time.Hour / (2 * each) {
					x.Failed(errAway)
					time.Sleep(each)
					x.Reached()
					time.Sleep(each)
				}
				if all := l.take(); len(all) > 20 || len(all) < 2 {
					t.Errorf("%d lines in two hours:\n%s", len(all), strings.Join(all, "\n"))
				}
				x.Reached()
				time.Sleep(mostSettle)
				if all := l.take(); len(all) != 1 || !strings.Contains(all[0], "msg=back") {
					t.Errorf("at the end: %q", all)
				}
			})
		})
	}
}

// TestLost has a server lose calls and sessions as it restarts within a moment: there is one line for all of them, and others later.
func TestLost(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, l := begin("lost")
		for i := range 10 {
			x.Failed(errAway)
			x.Ended(1, 0)
			x.LostSession()
			time.Sleep(time.Duration(i) * 10 * time.Millisecond)
			x.Reached()
		}
		time.Sleep(settle)
		l.want(t, "soon", "level=WARN msg=lost url=here outcome_unknown=10 sessions_lost=10")
		for range 3600 {
			x.LostSession()
			time.Sleep(time.Second)
		}
		if all := l.take(); len(all) != 2 {
			t.Errorf("in an hour: %q", all)
		}
		x.Close()
		if all := l.take(); len(all) != 1 {
			t.Errorf("at the end: %q", all)
		}
		x.Refused()
		var none *Outage
		none.Failed(errAway)
		none.Reached()
		none.Ended(1, 1)
		none.Close()
		if none.Covers() || none.IsAway() {
			t.Error("nothing is away")
		}
	})
}

// TestHandler has lines of failed operations logged during an outage: lines with the outage's error go to level Debug, and no others.
func TestHandler(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		x, l := begin("")
		var tries log
		logger := slog.New(x.Handler(slog.NewTextHandler(&tries, nil), func(err error) bool { return errors.Is(err, errAway) })).With("a", 1)
		wrapped := fmt.Errorf("not sent: %w", errAway)
		say := func() (lines int) {
			logger.Warn("not served", "error", wrapped)
			logger.WithGroup("g").Error("not served", "session", "s", "error", wrapped)
			logger.Warn("something else", "error", io.EOF)
			logger.Warn("something else")
			return len(tries.take())
		}
		for _, step := range []struct {
			when string
			do   func()
			want int
		}{
			{"there", func() {}, 4},
			{"away for a moment", func() { x.Failed(errAway) }, 2},
			{"away", func() { time.Sleep(time.Minute) }, 2},
			{"back just now", func() { x.Reached(); time.Sleep(settle) }, 2},
			{"back", func() { time.Sleep(late) }, 4},
		} {
			if step.do(); say() != step.want {
				t.Errorf("%s: not %d lines", step.when, step.want)
			}
		}
		l.take()
		debug := slog.New(x.Handler(slog.NewTextHandler(&tries, &slog.HandlerOptions{Level: slog.LevelDebug}), func(error) bool { return true }))
		x.Failed(errAway)
		debug.Warn("not served", "error", errAway)
		if all := tries.take(); len(all) != 1 || !strings.Contains(all[0], "level=DEBUG") {
			t.Errorf("at level Debug: %q", all)
		}
		x.Close()
	})
}
