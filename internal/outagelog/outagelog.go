// Package outagelog logs when a dependency of calls, such as a store or an upstream server, is away: one line when it goes, one when
// it is back, and some between if it stays away, each with the calls concerned. The lines of each try go to level Debug.
package outagelog

import (
	"context"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// Options are the lines of an Outage, and when they are logged.
type Options struct {
	Logger *slog.Logger
	Attrs  []any // attributes that name the dependency

	Away  string // text: it is away, what happens meanwhile, and what to do if it stays away. Level Warn
	Still string // the same again, after a minute, ten minutes, and each hour. Level Warn
	Back  string // level Info
	// Lost is for sessions and calls that were lost while the dependency was not known to be away, such as
	// when a server was started again. Level Warn. Empty: the callers log each loss.
	Lost string

	// Calls returns how many calls are in flight, and may wait for the dependency. It must not block.
	Calls func() int
	// Confirm is how long the dependency must be away before that is logged.
	Confirm time.Duration
	// Certain says that a failed try has done harm already: it is logged after Confirm even if another try has
	// succeeded meanwhile.
	Certain bool
	// Wait is how much longer than usual the line Back waits while calls wait, so that all of them have tried again.
	Wait time.Duration
}

const (
	// settle is how long the dependency must be back before that is logged: by then the losses are known.
	settle = 2 * time.Second
	// mostSettle is the longest such time, for a dependency that comes and goes, so that it does not fill the log.
	mostSettle = 10 * time.Minute
	// late is how long after that Covers stays true, for tries that began before.
	late = 5 * time.Second
)

// again are the times after which the line Still is logged; then it is each hour. They are the times between lines Lost, too.
var again = []time.Duration{time.Minute, 10 * time.Minute, time.Hour}

// An Outage is the state of a dependency. A nil Outage logs nothing. Its methods may be called concurrently.
type Outage struct {
	o    Options
	well atomic.Bool // state is here: Reached has nothing to do

	mu        sync.Mutex
	state     state
	since     time.Time // when the first try failed
	err       error     // of the last try that failed
	told      time.Time // when Away or Still was last logged
	lines     int       // how often Still was logged
	waits     bool      // timer is set for Still
	back      time.Time // when the first try succeeded again
	quiet     time.Time // Covers is true until then
	ended     time.Time // when Back was last logged
	often     int       // how often Back was logged, with less than mostSettle between
	lost      counts
	lostAt    time.Time // when losses were last logged
	lostLines int       // how often, with less than an hour between
	timer     *time.Timer
	lostTimer *time.Timer // logs Lost; nil: not set
}

// A state is that of the dependency.
type state int

const (
	here     state = iota // reachable, as far as is known
	doubted               // a try has failed just now
	away                  // Away was logged
	settling              // it was away, and a try has succeeded
)

// counts are the losses since the last line.
type counts struct {
	refused  int // requests
	unknown  int // calls with an unknown outcome
	failed   int // calls that have ended with another error
	sessions int
	taken    int // sessions taken over
	again    int // calls of these that run again
}

// New returns an Outage for a dependency that is there.
func New(o Options) *Outage {
	x := &Outage{o: o}
	x.well.Store(true)
	return x
}

// Failed notes that a try has failed because the dependency seems to be away.
func (x *Outage) Failed(err error) { x.FailedSince(time.Now(), err) }

// FailedSince is Failed for a dependency that was last reached at the time since, or a little later.
func (x *Outage) FailedSince(since time.Time, err error) {
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	now := time.Now()
	x.err = err
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

// settle waits until the dependency has been back for some time. x.mu is held.
func (x *Outage) settle(since time.Time) {
	x.state, x.back = settling, since
	x.after(min(settle<<min(2*max(x.often-1, 0), 20), mostSettle))
}

// Refused notes that a request was refused because of the outage.
func (x *Outage) Refused() { x.count(func(c *counts) { c.refused++ }) }

// Ended notes that calls have ended with an error because of the outage: unknown of them with an unknown outcome, and failed with
// another error.
func (x *Outage) Ended(unknown, failed int) {
	x.count(func(c *counts) {
		c.unknown += unknown
		c.failed += failed
	})
}

// LostSession notes that a session was lost.
func (x *Outage) LostSession() { x.count(func(c *counts) { c.sessions++ }) }

// TookOver notes that a session was taken over, with calls that run again, and calls with an unknown outcome.
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
		return // the callers log each loss
	}
	add(&x.lost)
	if x.state == here {
		x.tellLost()
	}
}

// IsAway reports whether the dependency is away, or seems to be.
func (x *Outage) IsAway() bool {
	if x == nil || x.well.Load() {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state == doubted || x.state == away
}

// Close logs the lines Lost and Back that are due later now, and stops the timers.
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

// after sets the timer for due. x.mu is held.
func (x *Outage) after(d time.Duration) {
	x.stop()
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		waiting := 0
		if x.o.Calls != nil {
			waiting = x.o.Calls() // it may need a lock that callers of after hold
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

// stop stops the timer. x.mu is held.
func (x *Outage) stop() {
	if x.timer != nil {
		x.timer.Stop()
		x.timer = nil
	}
	x.waits = false
}

// plan sets the timer for the next line Still. x.mu is held.
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

// due logs the line that is due now. waiting is the number of calls that wait. x.mu is held.
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
	// The next Failed plans the next line Still: without one there was no try, and the dependency may be back.
}

// calls returns the attribute for calls that wait.
func (x *Outage) calls(waiting int) []any {
	if x.o.Calls == nil {
		return nil
	}
	return []any{"calls_waiting", waiting}
}

// logBack logs that the dependency is back. x.mu is held.
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

// tellLost sets a timer to log the losses until then, with a longer time after each line. x.mu is held.
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

// logLost logs the losses, unless the dependency is away: then Back does. x.mu is held.
func (x *Outage) logLost() {
	x.lostTimer = nil
	if x.state != here || x.lost == (counts{}) {
		return
	}
	x.log(slog.LevelWarn, x.o.Lost, nil)
	x.lost, x.lostAt = counts{}, time.Now()
	x.lostLines++
}

// log logs one line, with the losses. x.mu is held.
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

// Covers reports whether the dependency is away, or was just now: then the Outage's lines stand for those of tries.
func (x *Outage) Covers() bool {
	if x == nil {
		return false
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.state != here || time.Now().Before(x.quiet)
}
