package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"holdfast/bench/load"
)

// callers is how many clients call at a time.
const callers = 16

// warmUp is how many calls a client makes before calls count.
const warmUp = 30

// The operations for which CPU is measured.
const (
	plainCall = "plain call"
	newCall   = "plain call, 2026-07-28"
	taskCall  = "tasks/get"
	sseCall   = "resumable SSE call"
	liveEvent = "stream event"
	oldEvent  = "replayed event"
)

// shortCalls are the operations that clients repeat for a time.
var shortCalls = []string{plainCall, newCall, taskCall, sseCall}

// cpuRound measures a subject once, and adds the server CPU of each operation, in microseconds, to
// the figures.
func cpuRound(f figures, s *subject, p *process, d time.Duration) error {
	for _, what := range shortCalls {
		if s.path(what) == "" {
			continue
		}
		l, err := newLane(s, p, what)
		if err != nil {
			return err
		}
		end := time.Now().Add(d)
		err = l.measure(f, func(int) bool { return time.Now().Before(end) })
		hangUp(l.cs)
		if err != nil {
			return err
		}
	}
	if s.stream != "" {
		return streams(f, s, p, d)
	}
	return nil
}

// A lane has the clients of one subject that make one kind of short call.
type lane struct {
	s    *subject
	p    *process
	what string
	cs   []*caller
	reqs []*load.Request // one for each client
}

// newLane connects the clients of a lane, which make their first calls.
func newLane(s *subject, p *process, what string) (_ *lane, err error) {
	l := &lane{s: s, p: p, what: what}
	if l.cs, err = s.call(p, s.path(what), callers); err != nil {
		return nil, err
	}
	l.reqs = make([]*load.Request, len(l.cs))
	for i, c := range l.cs {
		l.reqs[i], err = s.request(c, what)
		for n := 0; n < warmUp && err == nil; n++ {
			err = l.once(i)
		}
		if err != nil {
			hangUp(l.cs)
			return nil, fmt.Errorf("%s: %s: %w", s.name, what, err)
		}
	}
	return l, nil
}

// once makes one call with the client i.
func (l *lane) once(i int) error {
	res, err := l.cs[i].Do(l.reqs[i].Next())
	if err != nil {
		return err
	}
	if l.what == taskCall {
		return res.Expect(200, `"working"`)
	}
	return res.Expect(200, "eeee")
}

// measure measures calls. Each client makes one after the other while more, which gets the number
// of its calls so far, returns true.
func (l *lane) measure(f figures, more func(n int) bool) error {
	return drive(f, l.what, l.s, l.p, len(l.cs), func(i int) (n int, err error) {
		for more(n) && err == nil {
			err = l.once(i)
			n++
		}
		return n, err
	})
}

// request returns the request of a short call.
func (s *subject) request(c *caller, what string) (*load.Request, error) {
	switch what {
	case newCall:
		return load.PostModern(c.addr, c.path, "echo", load.EchoArgs(echoSize)), nil
	case taskCall:
		id := strings.Repeat("A", taskIDSize)
		if !s.bare {
			var err error
			if id, err = c.CreateTask(c.path, "slow", fmt.Sprintf(`{"ms":%d}`, waitMillis)); err != nil {
				return nil, err
			}
		}
		return load.GetTask(c.addr, c.path, id), nil
	}
	return c.post(load.Echo(echoSize)), nil
}

// streams measures calls that report progress, one by each client, and then, for a time d, their
// replay from the first event on.
func streams(f figures, s *subject, p *process, d time.Duration) error {
	cs, err := s.call(p, s.stream, callers)
	if err != nil {
		return err
	}
	defer hangUp(cs)
	err = drive(f, liveEvent, s, p, len(cs), func(i int) (int, error) {
		c := cs[i]
		res, err := c.Do(c.post(load.Progress(events, eventSize)))
		if err == nil {
			err = res.Expect(200, "done")
		}
		if err != nil {
			return 0, err
		}
		c.event = load.FirstEventID(res.Body)
		n := load.Events(res.Body)
		if n != events {
			f.lose(liveEvent, s.name, events-n)
		}
		return n, nil
	})
	if err != nil || !s.replay {
		return err
	}
	end := time.Now().Add(d)
	return drive(f, oldEvent, s, p, len(cs), func(i int) (sum int, err error) {
		c := cs[i]
		for time.Now().Before(end) {
			res, err := c.Do(load.Get(c.addr, c.path, c.session, c.event))
			if err == nil {
				err = res.Expect(200, "done")
			}
			if err != nil {
				return 0, err
			}
			n := load.Events(res.Body)
			if n < events-1 { // the floor does not replay: it writes all events again
				f.lose(oldEvent, s.name, events-1-n)
			}
			sum += n
		}
		return sum, nil
	})
}

// drive runs do for n clients at once, and adds the server CPU per operation to the figures. do
// returns how many operations a client has made.
func drive(f figures, what string, s *subject, p *process, n int, do func(i int) (int, error)) error {
	before, err := p.cpu()
	if err != nil {
		return err
	}
	ops := make([]int, n)
	errs := make([]error, n)
	inParallel(n, func(i int) { ops[i], errs[i] = do(i) })
	after, err := p.cpu()
	if err := errors.Join(append(errs, err)...); err != nil {
		return fmt.Errorf("%s: %s: %w", s.name, what, err)
	}
	sum := 0
	for _, n := range ops {
		sum += n
	}
	f.add(what, s.name, float64((after-before).Microseconds())/float64(sum))
	return nil
}

// inParallel calls do n times at once, and waits.
func inParallel(n int, do func(i int)) {
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() { do(i) })
	}
	wg.Wait()
}
