package main

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"holdfast/bench/load"
)

// callers is how many clients there are at a time.
const callers = 16

// warmUp is how many calls a client makes before its calls count.
const warmUp = 30

// What CPU is measured for.
const (
	plainCall = "plain call"
	newCall   = "plain call, 2026-07-28"
	taskCall  = "tasks/get"
	sseCall   = "resumable SSE call"
	liveEvent = "stream event"
	oldEvent  = "replayed event"
)

// cpuRound measures a subject once and adds server CPU per operation, in
// microseconds, to the figures.
func cpuRound(f figures, s *subject, p *process, d time.Duration) error {
	for _, one := range []struct{ what, path string }{
		{plainCall, s.plain}, {newCall, s.modern}, {taskCall, s.task}, {sseCall, s.sse},
	} {
		if one.path == "" {
			continue
		}
		if err := short(f, one.what, s, p, one.path, d); err != nil {
			return err
		}
	}
	if s.stream != "" {
		return streams(f, s, p, d)
	}
	return nil
}

// short measures short calls, for as long as d.
func short(f figures, what string, s *subject, p *process, path string, d time.Duration) error {
	cs, err := s.call(p, path, callers)
	if err != nil {
		return err
	}
	defer hangUp(cs)
	want := "eeee"
	if what == taskCall {
		want = `"working"`
	}
	once := func(c *caller, req *load.Request) error {
		res, err := c.Do(req.Next())
		if err != nil {
			return err
		}
		return res.Expect(200, want)
	}
	reqs := make(map[*caller]*load.Request)
	for _, c := range cs {
		if reqs[c], err = s.request(c, what); err != nil {
			return fmt.Errorf("%s: %s: %w", s.name, what, err)
		}
		for range warmUp {
			if err := once(c, reqs[c]); err != nil {
				return fmt.Errorf("%s: %s: %w", s.name, what, err)
			}
		}
	}
	end := time.Now().Add(d)
	return drive(f, what, s, p, cs, func(c *caller) (n int, err error) {
		for time.Now().Before(end) && err == nil {
			err = once(c, reqs[c])
			n++
		}
		return n, err
	})
}

// request makes the request of a short call.
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

// streams measures calls that report progress, each client one, and then, for as
// long as d, their replay from the first event on.
func streams(f figures, s *subject, p *process, d time.Duration) error {
	cs, err := s.call(p, s.stream, callers)
	if err != nil {
		return err
	}
	defer hangUp(cs)
	err = drive(f, liveEvent, s, p, cs, func(c *caller) (int, error) {
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
	return drive(f, oldEvent, s, p, cs, func(c *caller) (sum int, err error) {
		for time.Now().Before(end) {
			res, err := c.Do(load.Get(c.addr, c.path, c.session, c.event))
			if err == nil {
				err = res.Expect(200, "done")
			}
			if err != nil {
				return 0, err
			}
			n := load.Events(res.Body)
			if n < events-1 { // the floor, which replays nothing, writes all
				f.lose(oldEvent, s.name, events-1-n)
			}
			sum += n
		}
		return sum, nil
	})
}

// drive runs do for every client at once; do returns how many operations it was.
func drive(f figures, what string, s *subject, p *process, cs []*caller, do func(*caller) (int, error)) error {
	before, err := p.cpu()
	if err != nil {
		return err
	}
	ops := make([]int, len(cs))
	errs := make([]error, len(cs))
	inParallel(len(cs), func(i int) { ops[i], errs[i] = do(cs[i]) })
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
