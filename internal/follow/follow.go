// Package follow follows one call to its end: it shows how the call goes, asks the user what
// the server wants to know, and keeps where the call is, so that another process can resume it.
package follow

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"holdfast/client"
	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// hintAfter is how long a call may take before the command that resumes it is
// printed.
const hintAfter = time.Second

// lingerFor is how long a second Ctrl-C is waited for, to cancel the call.
const lingerFor = 2 * time.Second

// keepEvery is how often, at the most, it is written down where a call is.
const keepEvery = 200 * time.Millisecond

// Options say what is followed, and how.
type Options struct {
	Conn *client.Conn
	ID   []byte // of the call, and its progress token
	Name string // of the tool
	// Flags are those that the command which resumes the call takes too.
	Flags    string
	Display  *terminal.Display
	Prompter *terminal.Prompter // nil: questions are declined
	Saved    *SavedCall         // nil: nothing is kept
	// Settled reports whether a question of the past has been answered. It is for calls
	// that were begun elsewhere; else nil.
	Settled func(ctx context.Context) bool
	// Changed says that the Conn's state is another.
	Changed <-chan struct{}
}

// Call follows a call to its end, or until the user leaves ([ErrLeft]). It returns the
// response.
func Call(ctx context.Context, opts Options) (jsonrpc.Message, error) {
	return (&follower{Options: opts}).run(ctx)
}

// A follower follows a call to its end, or until the user leaves.
type follower struct {
	Options
	signals  chan os.Signal
	messages chan jsonrpc.Message
	answers  chan jsonrpc.Message

	waiting []jsonrpc.Message // questions to be asked
	asking  []byte            // the id of the one that is being asked
	unask   context.CancelCauseFunc

	long     *time.Timer // says that the call takes long
	hintDue  bool
	hinted   bool
	kept     time.Time // when it was last written down where the call is
	found    bool      // what was written down has its token
	keepSoon <-chan time.Time
	linger   <-chan time.Time // after the first Ctrl-C
}

// ErrLeft says that the user has left the call, which goes on or was cancelled. The user was
// told.
var ErrLeft = errors.New("the user has left the call")

// run follows the call. It returns its response.
func (w *follower) run(ctx context.Context) (jsonrpc.Message, error) {
	// What ends ctx is the same signals, which mean more here.
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	w.signals = make(chan os.Signal, 4)
	signal.Notify(w.signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(w.signals)
	w.messages, w.answers = make(chan jsonrpc.Message), make(chan jsonrpc.Message)
	go w.receive(ctx)
	w.long = time.NewTimer(hintAfter)
	defer w.long.Stop()
	w.keep()
	for {
		select {
		case m := <-w.messages:
			if m.Kind == jsonrpc.Response && bytes.Equal(m.ID, w.ID) {
				w.over(true)
				return m, nil
			}
			if w.cannotAsk(ctx, m) {
				return jsonrpc.Message{}, w.leaveAsked(m)
			}
			w.take(ctx, m)
		case m := <-w.answers:
			w.answered(ctx, m)
		case <-w.Changed:
			w.keep()
		case <-w.keepSoon:
			w.keepSoon = nil
			w.keep()
		case <-w.long.C:
			w.hintDue = true
			w.Display.Wait("waiting for " + w.Name)
			w.hint()
		case s := <-w.signals:
			if err := w.signalled(ctx, s); err != nil {
				return jsonrpc.Message{}, err
			}
		case <-w.linger:
			w.over(false)
			w.Conn.Detach()
			return jsonrpc.Message{}, ErrLeft
		}
	}
}

// cannotAsk says whether a message is a question of a call that somebody else began,
// who may be able to answer it, as nobody is here.
func (w *follower) cannotAsk(ctx context.Context, m jsonrpc.Message) bool {
	return w.Prompter == nil && w.Settled != nil && m.Kind == jsonrpc.Request && m.Method == "elicitation/create" && !w.Settled(ctx)
}

// leaveAsked leaves a call that waits for an answer.
func (w *follower) leaveAsked(m jsonrpc.Message) error {
	s, ok := w.state()
	w.over(false)
	w.Conn.Detach()
	text := terminal.OneLine(jsonrpc.String(jsonrpc.Field(m.Params, "message")))
	err := fmt.Errorf("there is no terminal to ask at, and the server waits for an answer to: %s", text)
	if command := w.command(s); ok && command != "" {
		err = fmt.Errorf("%w\nAnswer it at a terminal (or with --interactive): %s", err, command)
	}
	return err
}

// receive hands over what the server says.
func (w *follower) receive(ctx context.Context) {
	for {
		m, err := w.Conn.Receive(ctx)
		if err != nil {
			return // run ends it
		}
		select {
		case w.messages <- m:
		case <-ctx.Done():
			return
		}
	}
}

// over ends what is shown and kept, for good if the call is over.
func (w *follower) over(ended bool) {
	if w.unask != nil {
		w.unask(terminal.ErrWithdrawn)
	}
	w.Display.Close()
	w.Saved.end(ended)
}

// state is where the call is; false if its answer has come.
func (w *follower) state() (client.State, bool) { return oneCall(w.Conn.State(), w.ID) }

// keep writes down where the call is, not too often, and says how to resume it as
// soon as it can be.
func (w *follower) keep() {
	s, ok := w.state()
	if !ok || checkState(s) != nil {
		return
	}
	found := s.Calls[0].Token != ""
	if wait := keepEvery - time.Since(w.kept); wait > 0 && w.Saved.kept() && found == w.found {
		if w.keepSoon == nil {
			w.keepSoon = time.After(wait)
		}
		return
	}
	w.kept, w.found = time.Now(), found
	if err := w.Saved.put(s); err != nil {
		w.Display.Printf("holdfast: where the call is cannot be kept: %v", err)
		w.Saved.end(false)
		w.Saved = nil
	}
	w.hint()
}

// hint prints the command that resumes the call, once, when the call takes long:
// as soon as the call has a token where nothing else remembers it.
func (w *follower) hint() {
	if w.hinted || !w.hintDue && w.Saved.kept() || w.asking != nil && w.Display.TTY() {
		return
	}
	if s, ok := w.state(); ok && (w.hintDue || s.Calls[0].Token != "") {
		if command := w.command(s); command != "" {
			w.hinted = true
			w.Display.Printf("If this is interrupted, resume with: %s", command)
		}
	}
}

// command is what resumes the call; "" if nothing does.
func (w *follower) command(s client.State) string {
	t := Token(s)
	if t == "" {
		return ""
	}
	return "holdfast resume " + t + w.Flags
}

// take does what a message of the server wants.
func (w *follower) take(ctx context.Context, m jsonrpc.Message) {
	switch {
	case m.Kind == jsonrpc.Request && m.Method == "elicitation/create":
		w.keep() // the user may leave as soon as there is something to read
		if w.crowded(m) {
			w.send(ctx, declined(m))
			return
		}
		w.waiting = append(w.waiting, m)
		w.next(ctx)
	case m.Kind == jsonrpc.Request:
		w.send(ctx, Refusal(m))
	case m.Method == "notifications/progress":
		var s terminal.Step
		token := jsonrpc.Field(m.Params, "progressToken")
		if json.Unmarshal(m.Params, &s) == nil && bytes.Equal(jsonrpc.Key(token), jsonrpc.Key(w.ID)) {
			w.Display.Progress(s)
		}
	case m.Method == "notifications/message":
		w.log(m)
	case m.Method == "notifications/cancelled":
		w.takeBack(jsonrpc.Key(jsonrpc.Field(m.Params, "requestId")))
	}
}

// Questions of a server wait for the user, so many at the most and so many bytes.
const (
	mostWaiting      = 100
	mostWaitingBytes = 16 << 20
)

// crowded reports whether too many questions wait for one more to be asked.
func (w *follower) crowded(m jsonrpc.Message) bool {
	size := len(m.Raw)
	for _, one := range w.waiting {
		size += len(one.Raw)
	}
	return len(w.waiting) >= mostWaiting || len(w.waiting) > 0 && size > mostWaitingBytes
}

// declined is the answer of a user who does not want to say.
func declined(m jsonrpc.Message) jsonrpc.Message {
	return mustParse(jsonrpc.AppendResult(nil, m.ID, []byte(`{"action":"decline"}`)))
}

// log shows what the server logs.
func (w *follower) log(m jsonrpc.Message) {
	level := jsonrpc.String(jsonrpc.Field(m.Params, "level"))
	data := jsonrpc.Field(m.Params, "data")
	text := jsonrpc.String(data)
	if text == "" {
		text = string(data)
	}
	w.Display.Printf("%s: %s", terminal.OneLine(level), terminal.OneLine(text))
}

// takeBack drops a question that the server does not want answered any more.
func (w *follower) takeBack(id []byte) {
	for i, m := range w.waiting {
		if bytes.Equal(jsonrpc.Key(m.ID), id) {
			w.waiting = append(w.waiting[:i:i], w.waiting[i+1:]...)
			return
		}
	}
	if w.asking != nil && bytes.Equal(jsonrpc.Key(w.asking), id) {
		w.unask(terminal.ErrWithdrawn)
	}
}

// next asks the next question, if none is being asked.
func (w *follower) next(ctx context.Context) {
	if w.asking != nil || len(w.waiting) == 0 || w.linger != nil {
		return
	}
	m := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.asking = m.ID
	asking, unask := context.WithCancelCause(ctx)
	w.unask = unask
	go func() {
		reply := w.reply(asking, m)
		select {
		case w.answers <- reply:
		case <-ctx.Done():
		}
	}()
}

// reply asks the user, and makes what they answer a message. It has no kind if
// nobody wants it any more.
func (w *follower) reply(ctx context.Context, m jsonrpc.Message) jsonrpc.Message {
	decline := declined(m)
	if w.Settled != nil && w.Settled(ctx) {
		return decline // told again, and answered before: the server drops this one
	}
	if w.Prompter == nil {
		text := jsonrpc.String(jsonrpc.Field(m.Params, "message"))
		w.Display.Printf("declined, because there is no terminal to ask at: %s", terminal.OneLine(text))
		return decline
	}
	w.Display.Pause()
	defer w.Display.Resume()
	result, err := w.Prompter.Ask(ctx, m.Params)
	if err != nil {
		if errors.Is(err, terminal.ErrWithdrawn) {
			w.Display.Printf("(the question was taken back)")
		}
		return jsonrpc.Message{}
	}
	return mustParse(jsonrpc.AppendResult(nil, m.ID, result))
}

// answered sends an answer of the user.
func (w *follower) answered(ctx context.Context, m jsonrpc.Message) {
	w.unask(nil)
	w.asking, w.unask = nil, nil
	if m.Kind != 0 {
		w.send(ctx, m)
	}
	w.hintDue = false
	w.long.Reset(hintAfter) // what takes long is not the user
	w.next(ctx)
}

func (w *follower) send(ctx context.Context, m jsonrpc.Message) {
	if err := w.Conn.Send(ctx, m); err != nil {
		w.Display.Printf("holdfast: %v", err)
	}
}

// signalled does what the user wants with a signal: the first Ctrl-C leaves, a
// second one soon after it cancels the call. SIGTERM leaves at once.
func (w *follower) signalled(ctx context.Context, s os.Signal) error {
	if w.linger != nil && s == os.Interrupt {
		return w.cancel(ctx)
	}
	state, ok := w.state()
	if !ok {
		return nil // its answer has come, and is about to be taken
	}
	if w.unask != nil {
		w.unask(context.Canceled)
	}
	w.hinted = true // it is said below
	w.Display.Close()
	if checkState(state) == nil {
		_ = w.Saved.put(state)
	}
	command := w.command(state)
	switch {
	case command != "":
		w.Display.Notice("%s goes on at the server. Resume with: %s", w.Name, command)
	case w.Saved.kept():
		w.Display.Notice("%s was sent. Resume with: holdfast resume%s", w.Name, w.Flags)
	default:
		w.Display.Notice("%s goes on at the server, which offers no way to come back to it.", w.Name)
	}
	if s != os.Interrupt {
		w.over(false)
		w.Conn.Detach()
		return ErrLeft
	}
	w.Display.Notice("Ctrl-C again cancels it.")
	w.linger = time.After(lingerFor)
	return nil
}

// cancelWithin bounds how long the cancellation of a call may take.
const cancelWithin = 5 * time.Second

// cancel tells the server that nobody wants the call's answer.
func (w *follower) cancel(ctx context.Context) error {
	w.over(true)
	params := fmt.Appendf(nil, `{"requestId":%s,"reason":"the user cancelled it"}`, w.ID)
	w.send(ctx, mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/cancelled", params)))
	late := time.After(cancelWithin)
	for {
		if _, ok := w.state(); !ok { // it is off the record when the server was told
			_ = w.Conn.Close()
			w.Display.Notice("%s was cancelled.", w.Name)
			return ErrLeft
		}
		select {
		case <-w.Changed:
		case <-w.messages:
		case <-late:
			w.Conn.Detach()
			w.Display.Notice("%s: the server could not be told to cancel it.", w.Name)
			return ErrLeft
		}
	}
}

// Refusal answers a request of the server that nobody here can do: but for a ping it is an
// error.
func Refusal(m jsonrpc.Message) jsonrpc.Message {
	raw := jsonrpc.AppendResult(nil, m.ID, []byte("{}"))
	if m.Method != "ping" {
		raw = jsonrpc.AppendError(nil, m.ID, jsonrpc.Errorf(jsonrpc.CodeMethodNotFound, "holdfast cannot do %s", m.Method))
	}
	return mustParse(raw)
}

// mustParse takes a message apart that was made here.
func mustParse(raw []byte) jsonrpc.Message {
	m, err := jsonrpc.Parse(raw)
	if err != nil {
		panic(err) // a mistake in this program
	}
	return m
}
