package followcall

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// leave leaves the call, which continues at the server.
func (f *follower) leave() error {
	f.close()
	f.conn.Detach()
	return ErrLeft
}

// leaveUnanswered leaves a call that waits for an answer.
func (f *follower) leaveUnanswered(m jsonrpc.Message) error {
	command := f.place.command()
	_ = f.leave()
	text := terminal.OneLine(jsonrpc.String(jsonrpc.Field(m.Params, "message")))
	err := fmt.Errorf("there is no terminal to ask at, and the server waits for an answer to: %s", text)
	if command != "" {
		err = fmt.Errorf("%w\nAnswer it at a terminal (or with --interactive): %s", err, command)
	}
	return err
}

// signalled handles a signal. It returns an error if the call is not followed any more.
func (f *follower) signalled(ctx context.Context, e event) error {
	if _, ok := f.place.find(); !ok {
		return nil // the response is about to come
	}
	first := f.state == following
	if f.ends {
		e = stopped
	}
	if !f.move(e) {
		return nil // the same Ctrl-C
	}
	if f.state == cancelled {
		return f.cancel(ctx)
	}
	if first {
		f.questions.stop()
		f.display.Close()
		f.display.Notice("%s", f.place.whereItIs(f.name))
	}
	if f.state == left {
		return f.leave()
	}
	f.linger = time.After(settleFor)
	return nil
}
