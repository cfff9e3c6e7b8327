package main

import (
	"fmt"
	"path/filepath"

	"holdfast/bench/load"
)

// Memory is measured for one of these.
const (
	idleSession = "idle session with a GET stream"
	waitingCall = "waiting call"
	leftCall    = "waiting call, nobody connected"
)

const (
	// waitMillis is how long a waiting call waits: longer than any run.
	waitMillis = 1_800_000
	// perSession is how many calls wait in one session.
	perSession = 50
	// warm is how many sessions, or calls, are begun before those that count.
	warm = perSession
)

// memoryRound measures a subject in processes of its own: memory that earlier runs have left would
// blur the figures.
func memoryRound(f figures, s *subject, dir string, n int) error {
	for _, m := range []struct {
		path    string
		measure func(figures, *subject, *process, int) error
	}{{s.idle, idleSessions}, {s.wait, waitingCalls}} {
		if m.path == "" {
			continue
		}
		p, err := start(filepath.Join(dir, binary(s.server)), s.args...)
		if err != nil {
			return err
		}
		err = m.measure(f, s, p, n)
		p.stop()
		if err != nil {
			return fmt.Errorf("%s: memory: %w", s.name, err)
		}
	}
	return nil
}

// idleSessions opens sessions, each with a stream without events. It opens all sessions on one
// connection, which is open before the memory is measured.
func idleSessions(f figures, s *subject, p *process, n int) error {
	var open []*load.Client
	defer func() { closeAll(open) }()
	opener, err := load.Dial(p.addr)
	if err != nil {
		return err
	}
	open = append(open, opener)
	more := func(n int) error {
		for range n {
			session := "none"
			if !s.bare {
				if session, err = opener.Handshake(s.idle); err != nil {
					return err
				}
			}
			c, err := load.Dial(p.addr)
			if err != nil {
				return err
			}
			open = append(open, c)
			if err := c.Send(load.Get(p.addr, s.idle, session, "")); err != nil {
				return err
			}
		}
		return nil
	}
	if err := more(warm); err != nil {
		return err
	}
	before, err := p.settle()
	if err != nil {
		return err
	}
	if err := more(n); err != nil {
		return err
	}
	after, err := p.settle()
	if err != nil {
		return err
	}
	f.addMemory(idleSession, s.name, before, after, n)
	return nil
}

// waitingCalls lets calls wait, each on a connection of its own, and then cuts
// their connections. The warm ones stay.
func waitingCalls(f figures, s *subject, p *process, n int) error {
	sessions, err := s.call(p, s.wait, 1+n/perSession)
	if err != nil {
		return err
	}
	defer hangUp(sessions)
	warm, err := wait(p, sessions[:1])
	defer closeAll(warm)
	if err != nil {
		return err
	}
	before, err := p.settle()
	if err != nil {
		return err
	}
	waiting, err := wait(p, sessions[1:])
	defer closeAll(waiting)
	if err != nil {
		return err
	}
	held, err := p.settle()
	if err != nil {
		return err
	}
	f.addMemory(waitingCall, s.name, before, held, len(waiting))
	if !s.cut {
		return nil
	}
	closeAll(waiting)
	left, err := p.settle()
	if err != nil {
		return err
	}
	f.addMemory(leftCall, s.name, before, left, len(waiting))
	return nil
}

// wait makes calls in every session, each on a connection of its own, and reads none of the
// answers. The caller must close the connections also after an error.
func wait(p *process, sessions []*caller) (open []*load.Client, err error) {
	for _, owner := range sessions {
		req := owner.post(load.Slow(waitMillis))
		for range perSession {
			c, err := load.Dial(p.addr)
			if err != nil {
				return open, err
			}
			open = append(open, c)
			if err := c.Send(req.Next()); err != nil {
				return open, err
			}
		}
	}
	return open, nil
}

func closeAll(open []*load.Client) {
	for _, c := range open {
		_ = c.Close()
	}
}
