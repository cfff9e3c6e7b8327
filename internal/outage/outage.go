// Package outage tells an operator of something that calls depend on, such as a store or an upstream server, when that is away: one
// line when it goes, one when it is back, and some between if it stays away, each with the calls concerned. What each
// try would say of it goes to level Debug.
package outage

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Options say what is logged.
type Options struct {
	Logger *slog.Logger
	Attrs  []any // where it is

	Away  string // it is away; what happens meanwhile, and what to do if it stays so. Level Warn
	Still string // the same again, after a minute, ten minutes, and each hour. Level Warn
	Back  string // level Info
	// Lost is for sessions and calls that were lost although it was not seen to be away, such as with a server
	// that was started again. Level Warn. Empty: there is a line for each.
	Lost string

	// Calls returns how many calls are in flight, and may wait for it. It must not wait.
	Calls func() int
	// Confirm is how long it must be away before that is logged.
	Confirm time.Duration
	// Certain says that a try that has failed has had its cost, and so it is logged after that time even if another has
	// succeeded meanwhile.
	Certain bool
	// Wait is how much longer than usual, when it is back, that is not logged yet while calls wait: until all have tried again.
	Wait time.Duration
}

const (
	// settle is how long it must be there again before that is logged: then it is known what was lost.
	settle = 2 * time.Second
	// mostSettle is how long that is at the most for one that comes and goes, which so does not fill the log.
	mostSettle = 10 * time.Minute
	// late is how long after that lines of tries that began before are not logged.
	late = 5 * time.Second
)

// again are after which time away it is logged that it still is; then each hour. So much time is between lines about what was
// lost, too.
var again = []time.Duration{time.Minute, 10 * time.Minute, time.Hour}

// An Outage is what is known of it. A nil Outage knows and logs nothing. Its methods may be called concurrently.
type Outage struct {
	o    Options
	well atomic.Bool // state is here, and no Failed will do for that to be said: Reached has nothing to do

	mu        sync.Mutex
	state     state
	since     time.Time // of the first try that failed
	failed    time.Time // of the last
	err       error     // of that
	told      time.Time // of the last line
	lines     int       // that have said that it is still away
	waits     bool      // timer is to say that again
	back      time.Time // of the first try that did not fail
	quiet     time.Time // until then lines of tries are not logged
	ended     time.Time // when it was last logged that it is back
	often     int       // how often before, with less than mostSettle between
	lost      counts
	lostAt    time.Time // of the last line about what was lost
	lostLines int       // of such lines, with less than an hour between
	timer     *time.Timer
	lostTimer *time.Timer // not nil: tells what was lost
}

// A state is what is known.
type state int

const (
	here     state = iota // as far as is known
	doubted               // a try has failed just now
	away                  // and that was logged
	settling              // it was away, and was reached just now
)

// counts are what was lost.
type counts struct {
	refused  int // requests
	unknown  int // calls whose outcome is unknown
	failed   int // calls that have ended with another error
	sessions int
	taken    int // sessions that were taken over
	again    int // calls of those that run again
}

// New returns an Outage of something that is there.
func New(o Options) *Outage {
	x := &Outage{o: o}
	x.well.Store(true)
	return x
}

// Failed notes that a try has failed as it does when it is away.
func (x *Outage) Failed(err error) { x.FailedSince(time.Now(), err) }

// FailedSince is Failed where it was reached the last time at a time, or a little later.
func (x *Outage) FailedSince(since time.Time, err error) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	x.failed, x.err = now, err
	switch x.state {
	case here:
		x.state, x.since, x.back = doubted, since, time.Time{}
		x.well.Store(false)
		x.after(x.o.Confirm)
	case settling:
		x.state = away
		x.waits = false
		x.plan(now)
	case away:
		x.plan(now)
	case doubted:
		x.back = time.Time{}
	}
}

// Reached notes that a try has succeeded.
func (x *Outage) Reached() {
	if x == nil || x.well.Load() {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch x.state {
	case doubted:
		if x.o.Certain {
			if x.back.IsZero() {
				x.back = time.Now()
			}
			return
		}
		x.state = here
		x.well.Store(true)
		x.stop()
		x.tellLost()
	case away:
		x.settle(time.Now())
	case here, settling:
	}
}

// settle waits until it is certain that it is back. x.mu is held.
func (x *Outage) settle(since time.Time) {
	x.state, x.back = settling, since
	x.after(min(settle<<min(2*max(x.often-1, 0), 20), mostSettle))
}

// Refused notes that a request was refused, because it is away.
func (x *Outage) Refused() { x.count(func(c *counts) { c.refused++ }) }

// Ended notes that calls have ended with an error, because it is away: for unknown of them it is not known what became of them.
func (x *Outage) Ended(unknown, failed int) {
	x.count(func(c *counts) {
		c.unknown += unknown
		c.failed += failed
	})
}

// LostSession notes that a session was lost.
func (x *Outage) LostSession() { x.count(func(c *counts) { c.sessions++ }) }

// TookOver notes that a session was taken over, with calls that run again, and calls whose outcome is unknown.
func (x *Outage) TookOver(again, unknown int) {
	x.count(func(c *counts) {
		c.taken++
		c.again += again
		c.unknown += unknown
	})
}

func (x *Outage) count(add func(c *counts)) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.state == here && x.o.Lost == "" {
		return // there is a line for each
	}
	add(&x.lost)
	if x.state == here {
		x.tellLost()
	}
}

// IsAway reports whether it is away, or seems to be.
func (x *Outage) IsAway() bool {
	if x == nil || x.well.Load() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state == doubted || x.state == away
}

// Close ends what is to be logged later.
func (x *Outage) Close() {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.stop()
	if x.lostTimer != nil {
		x.lostTimer.Stop()
		x.logLost()
	}
	if x.state == settling {
		x.logBack()
	}
}

// after has it looked at again. x.mu is held.
func (x *Outage) after(d time.Duration) {
	x.stop()
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		waiting := 0
		if x.o.Calls != nil {
			waiting = x.o.Calls() // which may need a lock that is held where we are called
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.timer == t {
			x.timer = nil
			x.due(waiting)
		}
	})
	x.timer = t
}

// stop ends that. x.mu is held.
func (x *Outage) stop() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.waits = false
}

// plan has it logged in time that it is still away. x.mu is held.
func (x *Outage) plan(now time.Time) {
	if x.waits {
		return
	}
	every := again[min(x.lines, len(again)-1)]
	from := x.since
	if x.lines >= len(again) {
		from = x.told
	}
	x.after(max(from.Add(every).Sub(now), time.Second))
	x.waits = true
}

// due logs what it is time for, while so many calls wait. x.mu is held.
func (x *Outage) due(waiting int) {
	x.waits = false
	now := time.Now()
	switch x.state {
	case doubted:
		x.state, x.told, x.lines = away, now, 0
		x.log(slog.LevelWarn, x.o.Away, append(x.calls(waiting), "since", x.since.UTC().Format(time.RFC3339), "error", x.err))
		if !x.back.IsZero() {
			x.settle(x.back)
		}
	case away:
		x.lines++
		x.told = now
		x.log(slog.LevelWarn, x.o.Still, append(x.calls(waiting), "for", now.Sub(x.since).Round(time.Second), "error", x.err))
	case settling:
		if x.o.Wait > now.Sub(x.back)-settle && waiting > 0 {
			x.after(time.Second)
			return
		}
		x.logBack()
	case here:
	}
	// What fails no more was not tried again, and may be there: it says so when it fails again (Failed).
}

// calls are those that wait.
func (x *Outage) calls(waiting int) []any {
	if x.o.Calls == nil {
		return nil
	}
	return []any{"calls_waiting", waiting}
}

// logBack logs that it is back. x.mu is held.
func (x *Outage) logBack() {
	now := time.Now()
	if x.often++; now.Sub(x.ended) > mostSettle {
		x.often = 1
	}
	x.state, x.quiet, x.ended = here, now.Add(late), now
	if x.lost.sessions > 0 {
		x.lostAt, x.lostLines = now, 1
	}
	x.log(slog.LevelInfo, x.o.Back, []any{"for", x.back.Sub(x.since).Round(100 * time.Millisecond)})
	x.lost = counts{}
	x.well.Store(true)
}

// tellLost has what was lost logged soon, with what is lost until then: later each time. x.mu is held.
func (x *Outage) tellLost() {
	if x.lost == (counts{}) || x.lostTimer != nil {
		return
	}
	wait := settle
	switch since := time.Since(x.lostAt); {
	case since > again[len(again)-1]:
		x.lostLines = 0
	case x.lostLines > 0:
		wait = max(settle, again[min(x.lostLines, len(again))-1]-since)
	}
	x.lostTimer = time.AfterFunc(wait, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		if x.lostTimer != nil {
			x.logLost()
		}
	})
}

// logLost logs what was lost, unless that is away and says so when it is back. x.mu is held.
func (x *Outage) logLost() {
	x.lostTimer = nil
	if x.state != here || x.lost == (counts{}) {
		return
	}
	x.log(slog.LevelWarn, x.o.Lost, nil)
	x.lost, x.lostAt = counts{}, time.Now()
	x.lostLines++
}

// log logs one line, with what was lost. x.mu is held.
func (x *Outage) log(level slog.Level, text string, attrs []any) {
	all := append(append([]any{}, x.o.Attrs...), attrs...)
	for _, n := range []struct {
		name string
		n    int
	}{
		{"requests_refused", x.lost.refused}, {"outcome_unknown", x.lost.unknown}, {"calls_failed", x.lost.failed}, {"sessions_lost", x.lost.sessions},
		{"sessions_taken_over", x.lost.taken}, {"calls_again", x.lost.again},
	} {
		if n.n > 0 {
			all = append(all, n.name, n.n)
		}
	}
	x.o.Logger.Log(context.Background(), level, text, all...)
}

// Covers reports whether it is away, or was just now: what tries say of that is told by lines of the Outage, with counts.
func (x *Outage) Covers() bool {
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state != here || time.Now().Before(x.quiet)
}
