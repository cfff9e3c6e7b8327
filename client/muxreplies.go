package client

import (
	"context"

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
func (x *mux) answer(ctx context.Context, up int, raw []byte, a *answer) error {
	if err := x.write(ctx, up, raw); err != nil || a == nil {
		return err
	}
	x.mu.Lock()
	a.up = up
	ask := !x.answers.asking
	x.answers.asking = true
	x.mu.Unlock()
	if ask {
		x.c.spawn(x.confirm)
	}
	return nil
}

// confirm forgets answers which the server has. What is written while it is asked
// for some is asked for next.
func (x *mux) confirm() {
	x.mu.Lock()
	defer x.mu.Unlock()
	defer func() { x.answers.asking = false }()
	for {
		number := x.number
		some := x.answers.written(number)
		if !x.state.connected() || len(some) == 0 {
			return
		}
		x.mu.Unlock()
		err := x.conn.confirm(x.c.ctx)
		x.mu.Lock()
		switch {
		case !x.up(number): // they have been written again, or will be
			continue
		case err != nil:
			return // who writes the next answer asks for all
		}
		for key, one := range some {
			if x.answers.kept[key] == one {
				delete(x.answers.kept, key)
			}
		}
	}
}

// answerAgain tells the server again what it may not have heard.
func (x *mux) answerAgain(up int) {
	x.mu.Lock()
	var again []*answer
	for id, a := range x.answers.kept {
		if a.k != nil && a.k.done() {
			delete(x.answers.kept, id)
			continue
		}
		again = append(again, a)
	}
	x.mu.Unlock()
	for _, a := range again {
		if x.answer(x.c.ctx, up, a.raw, a) != nil {
			return
		}
	}
}
