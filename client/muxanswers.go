package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// mostAnswers bounds how many answers are kept.
const mostAnswers = 1000

// answers are those that the host has given over a line that does not say when the
// server has them. They are kept until it has. line.mu guards them.
type answers struct {
	kept   map[string]*answer // by the key of their id
	pings  map[string]bool    // questions whose answers nobody misses
	count  int                // how many answers there have been
	asking bool               // the server is being asked whether it has them
}

// answer is one that the server may have to be told again.
type answer struct {
	k   *call
	raw []byte
	n   int // the how many-th it is
	up  int // over which connection it was written; 0: none yet
}

func newAnswers() answers {
	return answers{kept: make(map[string]*answer), pings: make(map[string]bool)}
}

// asked takes note of a question of the server.
func (a *answers) asked(m jsonrpc.Message) {
	key := string(jsonrpc.Key(m.ID))
	switch {
	case m.Method != protocol.MethodPing:
		delete(a.pings, key)
	case len(a.pings) < mostAnswers:
		a.pings[key] = true
	}
}

// keep keeps an answer, unless nobody would miss it: then it is nil. Of too many
// the newest stay.
func (a *answers) keep(k *call, m jsonrpc.Message) *answer {
	key := string(jsonrpc.Key(m.ID))
	if a.pings[key] {
		delete(a.pings, key)
		return nil
	}
	if len(a.kept) >= mostAnswers {
		oldest := ""
		for key, old := range a.kept {
			if oldest == "" || old.n < a.kept[oldest].n {
				oldest = key
			}
		}
		delete(a.kept, oldest)
	}
	a.count++
	one := &answer{k: k, raw: m.Raw, n: a.count}
	a.kept[key] = one
	return one
}

// sessionEnds forgets what only a session that is gone has asked.
func (a *answers) sessionEnds() {
	clear(a.pings)
	for key, one := range a.kept {
		if one.k == nil {
			delete(a.kept, key)
		}
	}
}

// written returns, by their keys, what has been written over a connection.
func (a *answers) written(up int) map[string]*answer {
	some := make(map[string]*answer)
	for key, one := range a.kept {
		if one.up == up {
			some[key] = one
		}
	}
	return some
}

// answer writes an answer over the connection of a number. a is nil if it is not
// kept.
func (l *line) answer(ctx context.Context, up int, raw []byte, a *answer) error {
	if err := l.write(ctx, up, raw); err != nil || a == nil {
		return err
	}
	l.mu.Lock()
	a.up = up
	ask := !l.answers.asking
	l.answers.asking = true
	l.mu.Unlock()
	if ask {
		l.c.spawn(l.confirm)
	}
	return nil
}

// confirm forgets answers which the server has. What is written while it is asked
// for some is asked for next.
func (l *line) confirm() {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() { l.answers.asking = false }()
	for {
		up := l.up
		some := l.answers.written(up)
		if up == 0 || len(some) == 0 {
			return
		}
		l.mu.Unlock()
		err := l.wire.confirm(l.c.ctx)
		l.mu.Lock()
		switch {
		case l.up != up: // they have been written again, or will be
			continue
		case err != nil:
			return // who writes the next answer asks for all
		}
		for key, one := range some {
			if l.answers.kept[key] == one {
				delete(l.answers.kept, key)
			}
		}
	}
}

// answerAgain tells the server again what it may not have heard.
func (l *line) answerAgain(up int) {
	l.mu.Lock()
	var again []*answer
	for id, a := range l.answers.kept {
		if a.k != nil && a.k.done() {
			delete(l.answers.kept, id)
			continue
		}
		again = append(again, a)
	}
	l.mu.Unlock()
	for _, a := range again {
		if l.answer(l.c.ctx, up, a.raw, a) != nil {
			return
		}
	}
}

// overLineTell sends a message that has no answer.
func (c *Conn) overLineTell(ctx context.Context, m jsonrpc.Message, k *call, atMost time.Duration) error {
	l := c.theLine()
	var a *answer
	resumes := m.Kind == jsonrpc.Response && l.wire.resumes()
	if resumes {
		l.mu.Lock()
		a = l.answers.keep(k, m)
		l.mu.Unlock()
	}
	var p pace
	for {
		up, err := l.wait(ctx, m.Method == protocol.MethodInitialized)
		if err != nil {
			return err
		}
		if err = l.answer(ctx, up, m.Raw, a); err == nil || resumes {
			return nil
		}
		var no *refusal
		if errors.As(err, &no) {
			if !no.passes() {
				return fmt.Errorf("not taken: %w", err)
			}
			p.atleast = no.after
		}
		if err := p.waitFor(ctx, err, atMost); err != nil {
			return err
		}
	}
}
