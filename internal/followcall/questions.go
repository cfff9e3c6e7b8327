package followcall

import (
	"bytes"
	"context"
	"errors"
	"sync"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// elicit is the method of a question of the server to the user (2025-11-25, Elicitation).
const elicit = "elicitation/create"

// questions are the server's questions to the user. The user is asked one at a time; the
// others wait. It belongs to one goroutine, but for answers.
type questions struct {
	prompter *terminal.Prompter // nil: questions are declined
	display  *terminal.Display
	settled  func(ctx context.Context) bool // see [Options]
	answers  chan jsonrpc.Message           // a message without a Kind: no answer is wanted

	waiting []jsonrpc.Message
	current []byte                  // id of the question that the user is asked; nil: none
	cancel  context.CancelCauseFunc // ends the current question
	stopped bool                    // the user is not asked any more
	work    sync.WaitGroup
}

// Bounds of the questions that wait for the user: how many, and their bytes.
const (
	maxWaiting      = 100
	maxWaitingBytes = 16 << 20
)

// unanswerable reports whether a message is a question that no user here can answer, of a
// call that another process began. There may be a user where that process ran.
func (q *questions) unanswerable(ctx context.Context, m jsonrpc.Message) bool {
	return q.prompter == nil && q.settled != nil && m.Kind == jsonrpc.Request && m.Method == elicit && !q.settled(ctx)
}

// add lets a question wait for the user. It reports whether there was room.
func (q *questions) add(m jsonrpc.Message) bool {
	size := len(m.Raw)
	for _, one := range q.waiting {
		size += len(one.Raw)
	}
	if len(q.waiting) >= maxWaiting || len(q.waiting) > 0 && size > maxWaitingBytes {
		return false
	}
	q.waiting = append(q.waiting, m)
	return true
}

// next asks the question that has waited longest, if the user is not being asked another.
func (q *questions) next(ctx context.Context) {
	if q.current != nil || len(q.waiting) == 0 || q.stopped {
		return
	}
	m := q.waiting[0]
	q.waiting = q.waiting[1:]
	asking, cancel := context.WithCancelCause(ctx)
	q.current, q.cancel = m.ID, cancel
	q.work.Go(func() {
		response := q.ask(asking, m)
		select {
		case q.answers <- response:
		case <-ctx.Done():
		}
	})
}

// done notes that the answer to the current question was taken.
func (q *questions) done() {
	q.cancel(nil)
	q.current, q.cancel = nil, nil
}

// onScreen reports whether the user sees a question at a terminal.
func (q *questions) onScreen() bool { return q.current != nil && q.display.TTY() }

// withdraw drops a question that the server does not want answered any more.
func (q *questions) withdraw(id []byte) {
	for i, m := range q.waiting {
		if bytes.Equal(jsonrpc.Key(m.ID), id) {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return
		}
	}
	if bytes.Equal(jsonrpc.Key(q.current), id) {
		q.withdrawCurrent(terminal.ErrWithdrawn)
	}
}

// withdrawCurrent ends the question that the user is asked, for a cause.
func (q *questions) withdrawCurrent(cause error) {
	if q.current != nil {
		q.cancel(cause)
	}
}

// stop ends the questions: the user leaves.
func (q *questions) stop() {
	q.stopped = true
	q.withdrawCurrent(context.Canceled)
}

// ask asks the user, and returns the response for the server. The response has no Kind if
// the question was withdrawn, or the user leaves.
func (q *questions) ask(ctx context.Context, m jsonrpc.Message) jsonrpc.Message {
	if q.settled != nil && q.settled(ctx) {
		return declined(m) // the server has the answer already, and ignores this one
	}
	if q.prompter == nil {
		text := jsonrpc.String(jsonrpc.Field(m.Params, "message"))
		q.display.Printf("declined, because there is no terminal to ask at: %s", terminal.OneLine(text))
		return declined(m)
	}
	q.display.Pause()
	defer q.display.Resume()
	result, err := q.prompter.Ask(ctx, m.Params)
	if err != nil {
		if errors.Is(err, terminal.ErrWithdrawn) {
			q.display.Printf("(the server has withdrawn the question)")
		}
		return jsonrpc.Message{}
	}
	return mustParse(jsonrpc.AppendResult(nil, m.ID, result))
}

// declined returns the response of a user who does not want to answer.
func declined(m jsonrpc.Message) jsonrpc.Message {
	return mustParse(jsonrpc.AppendResult(nil, m.ID, []byte(`{"action":"decline"}`)))
}
