// Package followcall follows one call to its end. It shows the call's progress, asks the user the
// server's questions, and saves where the call is, so that another process can resume it.
package followcall

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"holdfast/client"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// Options say which call is followed, and how.
type Options struct {
	Conn *client.Conn
	ID   []byte // of the call; its progress token is the same
	Name string // of the tool
	Task string // the task that has the call's result (2025-11-25); "": it is a call of the tool itself
	// ResumeFlags follow the name or the token in the command that resumes the call; before them, NameFlags follow a name.
	ResumeFlags, NameFlags string
	// ShowToken puts the token into that command, so that the call can be resumed on another machine.
	ShowToken bool
	// Ends says that the server ends with this program: then a user who leaves the call cancels it, and nothing resumes it.
	Ends bool
	// Until is when the call is left if it has no result; zero: never.
	Until    time.Time
	Display  *terminal.Display
	Prompter *terminal.Prompter // nil: questions are declined
	Saved    *SavedCall         // nil: nothing is saved
	// Settled reports whether the server has the answer to a question that it sends again.
	// It is for a call that another process began; else nil.
	Settled func(ctx context.Context) bool
	// Changed has a value when the state of Conn may have changed.
	Changed <-chan struct{}
}

// ErrTimeout says that the call has no result at [Options.Until]. The user was told what becomes of it.
var ErrTimeout = errors.New("no result in time")

// ErrLeft says that the user has left the call, and was told what becomes of it.
var ErrLeft = errors.New("the user has left the call")

// Call follows a call to its end, and returns the response. It fails with [ErrLeft] if the
// user leaves the call, which continues at the server or was cancelled. ctx gives values
// only: Call itself handles the signals that end it.
func Call(ctx context.Context, opts Options) (jsonrpc.Message, error) {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	f := &follower{
		conn: opts.Conn, id: opts.ID, name: opts.Name, task: opts.Task, display: opts.Display,
		questions: &questions{prompter: opts.Prompter, display: opts.Display, settled: opts.Settled, answers: make(chan jsonrpc.Message)},
		messages:  make(chan jsonrpc.Message), changed: opts.Changed, signals: make(chan os.Signal, 4), ends: opts.Ends,
	}
	if !opts.Until.IsZero() {
		f.until = time.After(time.Until(opts.Until))
	}
	find := func() (client.State, bool) { return oneCall(opts.Conn.State(), opts.ID) }
	f.place = newPlace(&opts, find, f.questions.onScreen)
	signal.Notify(f.signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(f.signals)
	var work sync.WaitGroup
	defer func() {
		stop()
		work.Wait()
		f.questions.work.Wait()
	}()
	work.Go(func() { f.receive(ctx) })
	return f.run(ctx)
}

// state is how far a call that is followed has come:
//
//	state      event        next state
//	following  responded    ended
//	following  interrupted  settling    Ctrl-C: the user learns how to resume
//	following  terminated   left        SIGTERM
//	following  stopped      cancelled   Ctrl-C or SIGTERM, and the server ends with this program
//	following  unanswered   left        no user here can answer a question of the server
//	settling   responded    ended
//	each but the ends  expired  left    there is no result in time
//	settling   terminated   left
//	settling   unanswered   left
//	settling   elapsed      leaving     from now on Ctrl-C cancels: the user learns that
//	leaving    responded    ended
//	leaving    interrupted  cancelled   Ctrl-C again: the server is told to cancel the call
//	leaving    terminated   left
//	leaving    unanswered   left
//	leaving    elapsed      left        there was no second Ctrl-C
//
// In state ended the response is there, or about to come. In state left the call continues
// at the server.
type state uint8

const (
	following state = iota
	settling
	leaving
	ended
	left
	cancelled
)

type event uint8

const (
	responded event = iota + 1
	interrupted
	terminated
	unanswered
	elapsed
	stopped
	expired
)

// moves is the table of [state].
var moves = map[state]map[event]state{
	following: {responded: ended, interrupted: settling, terminated: left, unanswered: left, stopped: cancelled, expired: left},
	settling:  {responded: ended, terminated: left, unanswered: left, elapsed: leaving, expired: left},
	leaving:   {responded: ended, interrupted: cancelled, terminated: left, unanswered: left, elapsed: left, expired: left},
}

// settleFor is how long after Ctrl-C another one is taken for the same: npm passes on the signal that the terminal has already sent
// to the whole group of processes. lingerFor is how long, after that, a second Ctrl-C cancels the call.
const (
	settleFor = 300 * time.Millisecond
	lingerFor = 2 * time.Second
)

// A follower follows a call. It belongs to the goroutine that runs it.
type follower struct {
	conn      *client.Conn
	id        []byte
	name      string
	task      string
	display   *terminal.Display
	place     *place
	questions *questions
	messages  chan jsonrpc.Message
	changed   <-chan struct{}
	signals   chan os.Signal
	state     state
	linger    <-chan time.Time // in the states settling and leaving
	until     <-chan time.Time // nil: there is no bound
	ends      bool
}

// move changes the state by an event. It reports whether the table has such a transition; if
// not, nothing changes.
func (f *follower) move(e event) bool {
	next, ok := moves[f.state][e]
	if ok {
		f.state = next
	}
	return ok
}

// run handles all events until the call is not followed any more.
func (f *follower) run(ctx context.Context) (jsonrpc.Message, error) {
	defer f.place.stop()
	f.place.save()
	for {
		select {
		case m := <-f.messages:
			switch {
			case m.Kind == jsonrpc.Response && bytes.Equal(m.ID, f.id):
				f.move(responded)
				f.close()
				return m, nil
			case f.questions.unanswerable(ctx, m):
				f.move(unanswered)
				return jsonrpc.Message{}, f.leaveUnanswered(m)
			}
			f.handle(ctx, m)
		case m := <-f.questions.answers:
			f.questions.done()
			if m.Kind != 0 {
				f.send(ctx, m)
			}
			f.place.restart() // the time that the user took does not count
			f.questions.next(ctx)
		case <-f.changed:
			f.place.save()
		case <-f.place.later:
			f.place.save()
		case <-f.place.long.C:
			f.display.Wait("waiting for " + f.name)
			f.place.late()
		case s := <-f.signals:
			e := interrupted
			if s != os.Interrupt {
				e = terminated
			}
			if err := f.signalled(ctx, e); err != nil {
				return jsonrpc.Message{}, err
			}
		case <-f.until:
			return jsonrpc.Message{}, f.expire(ctx)
		case <-f.linger:
			if f.move(elapsed); f.state == left {
				return jsonrpc.Message{}, f.leave()
			}
			f.display.Notice("Ctrl-C again cancels it.")
			f.linger = time.After(lingerFor)
		}
	}
}

// receive passes on the messages of the server.
func (f *follower) receive(ctx context.Context) {
	for {
		m, err := f.conn.Receive(ctx)
		if err != nil {
			return // run ends it
		}
		select {
		case f.messages <- m:
		case <-ctx.Done():
			return
		}
	}
}

// close ends the display and the questions, and releases the call's file, which it removes if the call has ended.
func (f *follower) close() {
	f.questions.withdrawCurrent(terminal.ErrWithdrawn)
	f.display.Close()
	f.place.saved.close(f.state == ended || f.state == cancelled)
}

// expire leaves a call that has no result in time.
func (f *follower) expire(ctx context.Context) error {
	told := f.state != following
	f.move(expired)
	f.questions.stop()
	f.display.Close()
	if f.ends {
		_ = f.cancel(ctx)
		return ErrTimeout
	}
	if !told {
		f.display.Notice("%s", f.place.whereItIs(f.name))
	}
	_ = f.leave()
	return ErrTimeout
}

// cancelWithin bounds how long the cancellation of a call may take.
const cancelWithin = 5 * time.Second

// cancelID is the id of the request that cancels a task.
var cancelID = []byte(`"cancel"`)

// cancel tells the server to cancel the call.
func (f *follower) cancel(ctx context.Context) error {
	f.close()
	told := f.task == ""
	if !told { // tasks are cancelled by a request alone (2025-11-25, Cancellation)
		params := fmt.Appendf(nil, `{"taskId":%s}`, jsonrpc.Quote(f.task))
		f.send(ctx, mustParse(jsonrpc.AppendRequest(nil, cancelID, "tasks/cancel", params)))
	}
	params := fmt.Appendf(nil, `{"requestId":%s,"reason":"the user cancelled it"}`, f.id)
	f.send(ctx, mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/cancelled", params)))
	late := time.After(cancelWithin)
	for {
		if _, ok := f.place.find(); !ok && told { // the client has told the server
			_ = f.conn.Close()
			f.display.Notice("%s was cancelled.", f.name)
			return ErrLeft
		}
		select {
		case <-f.changed:
		case m := <-f.messages:
			told = told || m.Kind == jsonrpc.Response && bytes.Equal(m.ID, cancelID)
		case <-late:
			f.conn.Detach()
			f.display.Notice("%s may still run: the server could not be told to cancel it.", f.name)
			return ErrLeft
		}
	}
}

// handle handles a message of the server that is not the call's response.
func (f *follower) handle(ctx context.Context, m jsonrpc.Message) {
	switch {
	case m.Kind == jsonrpc.Request && m.Method == elicit:
		f.place.save() // the user may leave as soon as the question is shown
		if !f.questions.add(m) {
			f.send(ctx, declined(m))
			return
		}
		f.questions.next(ctx)
	case m.Kind == jsonrpc.Request:
		f.send(ctx, Refusal(m))
	case m.Method == "notifications/progress":
		var s terminal.Step
		token := jsonrpc.Field(m.Params, "progressToken")
		if json.Unmarshal(m.Params, &s) == nil && bytes.Equal(jsonrpc.Key(token), jsonrpc.Key(f.id)) {
			f.display.Progress(s)
			f.place.saved.progress(s)
			f.place.save()
		}
	case m.Method == "notifications/message":
		f.showLog(m)
	case m.Method == "notifications/cancelled":
		f.questions.withdraw(jsonrpc.Key(jsonrpc.Field(m.Params, "requestId")))
	}
}

// showLog shows a log message of the server.
func (f *follower) showLog(m jsonrpc.Message) {
	level := jsonrpc.String(jsonrpc.Field(m.Params, "level"))
	data := jsonrpc.Field(m.Params, "data")
	text := jsonrpc.String(data)
	if text == "" {
		text = string(data)
	}
	f.display.Printf("%s: %s", terminal.OneLine(level), terminal.OneLine(text))
}

func (f *follower) send(ctx context.Context, m jsonrpc.Message) {
	if err := f.conn.Send(ctx, m); err != nil {
		f.display.Printf("holdfast: %v", err)
	}
}

// Refusal returns the response to a request of the server that holdfast cannot do: an error,
// but for a ping.
func Refusal(m jsonrpc.Message) jsonrpc.Message {
	raw := jsonrpc.AppendResult(nil, m.ID, []byte("{}"))
	if m.Method != "ping" {
		raw = jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "holdfast cannot do %s", m.Method))
	}
	return mustParse(raw)
}

// mustParse parses a message that was made here.
func mustParse(raw []byte) jsonrpc.Message {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		panic(err) // a mistake in this program
	}
	return m
}
