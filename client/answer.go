package client

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/internal/budget"
	"holdfast/internal/protocol"
	"holdfast/internal/rpc"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

var (
	// errCut says that a connection ended before the response.
	errCut = errors.New("connection ended")
	// errNext asks for another attempt at once.
	errNext = errors.New("next")
)

// An answer is the answer to one of a call's exchanges, while it is read.
type answer struct {
	k       *call
	r       *response
	replay  bool        // the messages may have come before
	strayed bool        // the newest message of the call is a result under the id of no request
	stray   *time.Timer // ends the answer then, see [answer.endAfterStray]
}

// read reads the answer to one of the call's exchanges to its end. Nil says that the call has
// its response, or can be continued.
func (a *answer) read() error {
	k, r := a.k, a.r
	defer r.Close()
	switch {
	case r.StatusCode == http.StatusOK:
	case r.StatusCode == http.StatusAccepted && k.kind == attemptAnswers:
		k.batchTaken()
		return errNext // the next attempt asks for the messages that follow
	case r.StatusCode == http.StatusNoContent && r.Request.Method == http.MethodGet:
		return k.awaitReplies()
	case r.StatusCode == http.StatusNoContent && k.fromStart():
		return errNext
	case r.StatusCode == http.StatusAccepted, r.StatusCode == http.StatusNoContent:
		k.taken()
		return unusable("it took the request and gave no answer (HTTP %d)", r.StatusCode)
	default:
		no := k.c.remote.refused(r)
		if no.answer = a.isAnswer(no); no.answer && !k.origin.once && !k.doubts(no) {
			k.taken()
			return a.respond(no.response)
		}
		return no
	}
	if packed := r.Header.Get("Content-Encoding"); packed != "" && !strings.EqualFold(packed, "identity") {
		return unusable("its answer is compressed (%.20q), which it was not asked for", packed)
	}
	if id := r.Header.Get(protocol.HeaderSession); len(id) > mostSession {
		return unusable("its session id is longer than %d bytes", mostSession)
	}
	switch media := r.media(); media {
	case sse.ContentType:
		return a.readStream()
	case "application/json":
		return a.readJSON()
	default:
		no := k.c.remote.refused(r)
		no.page = true
		no.instead = unusable("it answered with %.60q, not JSON or an event stream: is this the URL of an MCP server?", media)
		return no
	}
}

// isAnswer reports whether a refusal is the server's answer to the request: a JSON-RPC error with the request's id. A
// refusal of a request that begins a session tells in which era the server speaks, and one that says when or how to try
// again is followed: neither is an answer. A refusal of a request that is sent again says nothing of the first sending.
func (a *answer) isAnswer(no *refusal) bool {
	switch {
	case a.k.kind != attemptRequest, no.response.ID == nil, !a.k.answeredUnder(no.response.ID), a.k.opens():
		return false
	case no.rpc.Code == protocol.CodeHeaderMismatch, no.rpc.Code == protocol.CodeUnsupportedVersion, no.rpc.Code == codeNoSession:
		return false
	}
	switch no.status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict:
		return false
	}
	return !no.later
}

// codeNoSession is the code of the error of an unknown session in the examples of the official SDKs.
const codeNoSession = -32001

// readJSON reads an answer that is JSON.
func (a *answer) readJSON() error {
	k, r := a.k, a.r
	r.expect(k.c.opts.Silence)
	k.taken()
	arrival := k.c.account.Arrive(k.c.ctx.Done())
	defer arrival.Done()
	data, err := r.all(k.c.opts.MaxMessage, arrival)
	switch {
	case errors.Is(err, errTooLarge):
		return unusable("%w", err)
	case budget.Full(err):
		return final("%w", err)
	case err != nil:
		return fmt.Errorf("%w: %w", errCut, err)
	}
	a.begun()
	msgs, err := a.messages(data)
	if err != nil {
		return &refusal{status: r.StatusCode, said: k.c.remote.secrets.Text(string(data)), instead: unusable("%w", rpc.CannotRead(data, err))}
	}
	if k.kind == attemptToken && len(msgs) == 1 && msgs[0].Error != nil {
		// It refuses requests/resume: messages of the call would come as a stream.
		k.backoff.last = errorOf(msgs[0].Error)
		k.refuse()
		return errNext
	}
	for _, m := range msgs {
		if err := a.message(m); err != nil {
			return err
		}
	}
	if !k.done() {
		return unusable("its answer is for another request")
	}
	return nil
}

// messages parses the data of an event, or a body. An error without an id, or with the id
// null, concerns the request as a whole (JSON-RPC 2.0, section 5), and becomes its response.
func (a *answer) messages(data []byte) ([]jsonrpc.Message, error) {
	msgs, err := rpc.Parse(data)
	if !errors.Is(err, jsonrpc.ErrInvalid) {
		return msgs, err
	}
	rpcError, id := jsonrpc.Field(data, "error"), jsonrpc.Field(data, "id")
	if rpcError == nil || rpcError[0] != '{' || id != nil && string(id) != "null" {
		return nil, err
	}
	m, perr := jsonrpc.Parse(jsonrpc.AppendError(nil, a.k.id, errorOf(rpcError)))
	if perr != nil {
		return nil, err
	}
	return []jsonrpc.Message{m}, nil
}

// begun notes the session id in the header of the answer to initialize.
func (a *answer) begun() {
	k, r := a.k, a.r
	if k.method == protocol.MethodInitialize && r.Request.Method == http.MethodPost {
		if id := r.Header.Get(protocol.HeaderSession); id != "" {
			if !k.origin.once {
				k.c.named(id)
			}
			k.mu.Lock()
			k.session.id = id
			k.mu.Unlock()
		}
	}
}

// readStream reads an answer that is an event stream, until the connection or the call ends.
func (a *answer) readStream() error {
	k, r := a.k, a.r
	k.taken()
	a.begun()
	if !k.isModern() {
		a.linked()
	}
	switch {
	case k.kind == attemptEvents:
		// Some servers replay the missed events, and send nothing more over this connection
		// but keep-alives: the next events come only when the stream is requested again.
		r.events = true
		r.expect(k.backoff.poll(k.c.opts.Silence))
	case k.resumable():
		r.expect(k.silence())
	default:
		r.expect(0)
		r.alive = k.c.opts.Silence
	}
	k.backoff.reached()
	switch k.kind {
	case attemptAnswers:
		k.batchTaken()
		k.repeats.turn()
	case attemptStream:
		k.batchTaken() // or else the server would have answered 204
		k.repeats.again()
	default:
		k.repeats.again()
	}
	k.turns.connect(true)
	defer k.turns.connect(false)
	k.sendLate()
	k.mu.Lock()
	// The events may have come before, here or on the standalone stream. A server that
	// honours keys is a Holdfast: it continues on the standalone stream calls with
	// connections that it takes for lost, even if they are still being read.
	a.replay = k.kind != attemptRequest || k.session.keys
	k.mu.Unlock()
	events := sse.NewReader(&keepAliveReader{r: r, silence: k.c.opts.Silence, quick: k.c.opts.quick}, k.c.opts.MaxMessage)
	arrival := k.c.count(events)
	defer arrival.Done()
	for {
		arrival.Done()
		ev, err := events.Next()
		switch {
		case err == nil:
		case budget.Full(err):
			return final("%w", err)
		case errors.Is(err, sse.ErrTooLong):
			return unusable("an event is larger than %d bytes", k.c.opts.MaxMessage)
		case errors.Is(err, io.EOF):
			return errCut
		default:
			return fmt.Errorf("%w: %w", errCut, err)
		}
		r.pause(true)
		if err := a.event(&ev); err != nil {
			return err
		}
		a.endAfterStray()
		if k.done() {
			r.drain()
			return nil
		}
		if r.quiet == 0 && k.resumable() {
			r.expect(k.silence())
		}
		r.pause(false)
	}
}

// event handles one event of the call's stream, which may be a replay.
func (a *answer) event(ev *sse.Event) error {
	msgs, err := a.parse(ev)
	// A request needs a reply. The host has a response only when the call has ended: a State
	// taken after it would lead the next process to a stream without events.
	waits := slices.ContainsFunc(msgs, func(m jsonrpc.Message) bool { return m.Kind != jsonrpc.Notification })
	if ev.ID != "" && !waits {
		a.k.settle()
	}
	for _, m := range msgs {
		if err := a.message(m); err != nil {
			return err
		}
	}
	return err
}

// parse notes the id and the retry field of an event, and returns its messages that have not
// come before: one, or in revision 2025-03-26 a batch.
func (a *answer) parse(ev *sse.Event) ([]jsonrpc.Message, error) {
	k := a.k
	if !headable(ev.ID) || k.isModern() && !k.declared { // a modern server resumes only declared calls
		ev.ID = ""
	}
	k.mu.Lock()
	if ev.Retry >= 0 {
		k.backoff.ask(ev.Retry, k.c)
	}
	again := false
	if ev.ID != "" {
		again = !k.ways.seen.add(ev.ID)
		k.ways.received.advance(ev.ID)
		k.ways.refused[attemptEvents] = false
	}
	k.mu.Unlock()
	if len(ev.Data) == 0 || ev.Name != "" && ev.Name != "message" {
		return nil, nil
	}
	repeated := k.c.repeated(ev)
	old := repeated && a.replay || again || ev.ID == "" && !k.subscribes() && k.repeats.add(k.c.seen.seed, ev.Data)
	msgs, err := a.messages(ev.Data)
	switch {
	case old:
		// A response is delivered once anyway, and some servers send it under an event id
		// that was used before.
		return slices.DeleteFunc(msgs, func(m jsonrpc.Message) bool { return m.Kind != jsonrpc.Response }), nil
	case err == nil && k.subscribes() && len(msgs) == 1 && msgs[0].Method == protocol.MethodAcknowledged:
		return msgs, nil // each connection begins with it
	case err == nil:
		k.backoff.progress()
		if repeated { // some servers use the same ids in each stream, but no two progress notifications are alike
			msgs = slices.DeleteFunc(msgs, func(m jsonrpc.Message) bool { return m.Method == protocol.MethodProgress })
		}
		return msgs, nil
	case !a.answeredBy(ev.Data):
		// Some servers send heartbeats and the like as data, and replay events without a message as {}.
		k.backoff.progress()
		k.c.dropped(ev.Data, err)
		return nil, nil
	}
	return nil, unusable("%w", rpc.CannotRead(ev.Data, err))
}

// answeredBy reports whether a text that is not a message was meant as the call's response.
func (a *answer) answeredBy(text []byte) bool {
	answer, ids := rpc.Try(text)
	return answer && (len(ids) == 0 || slices.ContainsFunc(ids, a.k.named))
}

// message handles one message of the call's stream.
func (a *answer) message(m jsonrpc.Message) error {
	k := a.k
	switch m.Kind {
	case jsonrpc.Response:
		if a.claims(m) {
			m.Raw, m.ID = m.WithID(k.id), k.id
		} else if a.strays(m) {
			a.strayed = true
		}
		if m.Error != nil && k.answeredUnder(m.ID) {
			if no := (&refusal{status: http.StatusOK, rpc: errorOf(m.Error), response: m, answer: true}); k.doubts(no) {
				return no
			}
		}
		return a.respond(m)
	case jsonrpc.Request:
		a.speaks()
		if k.isModern() { // the modern era has InputRequiredResult instead, and takes no reply
			k.c.logger.Warn("request of the server dropped: its revision has none", "method", m.Method)
			return nil
		}
		k.c.requests.pass(k, m)
	case jsonrpc.Notification:
		a.speaks()
		switch m.Method {
		case protocol.MethodResumePolicy:
			if (!k.isModern() || k.declared) && k.policy(m) {
				return nil
			}
		case protocol.MethodAcknowledged:
			if k.subscribes() && !k.acknowledged(m) {
				return nil
			}
		case protocol.MethodCancelled:
			m = k.c.requests.withdrawn(k, m)
		}
		if !k.c.goesBack(k, m) {
			k.c.deliver(k, m)
		}
	}
	return nil
}

// respond handles a response that has come on the call's stream.
func (a *answer) respond(m jsonrpc.Message) error {
	if a.k.goesOn(m) {
		return errNext
	}
	a.k.c.response(a.k, m)
	return nil
}

// claims reports whether an error response under the id of no request is the call's: it came in the answer to the
// request, which is about nothing else (2025-11-25, Transports, "Sending Messages to the Server"). Once a request was
// given up it reports false, as some servers send the response to that one there.
func (a *answer) claims(m jsonrpc.Message) bool { return m.Error != nil && a.strays(m) }

// strays reports whether a response came in the answer to the request under the id of no request in flight, and no
// request was given up.
func (a *answer) strays(m jsonrpc.Message) bool {
	return a.k.kind == attemptRequest && !a.k.answeredUnder(m.ID) && !a.k.c.calls.givenUp.Load() && a.k.c.calls.find(m.ID) == nil
}

// strayFor is how long a call still waits after a result that strays but seems to be its own: its stream may stay
// open for ever. The result is not taken for the call's response, as it may be that of another client's request.
const strayFor = 10 * time.Second

// endAfterStray ends the answer when nothing more of the call has come for [strayFor] after a result that strays.
func (a *answer) endAfterStray() {
	switch r := a.r; {
	case a.strayed && a.stray == nil:
		a.stray = time.AfterFunc(strayFor, func() { r.cancel(unusable("its answer is for another request")) })
	case !a.strayed && a.stray != nil:
		a.stray.Stop()
		a.stray = nil
	}
}

// speaks notes that the server has sent a request or a notification of the call.
func (a *answer) speaks() { a.k.spoken, a.strayed = true, false }
