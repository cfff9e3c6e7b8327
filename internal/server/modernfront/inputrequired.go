package modernfront

import (
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/observe"
	"holdfast/internal/protocol"
	"holdfast/internal/server/exchange"
	"holdfast/internal/server/modern"
	"holdfast/internal/server/streaming"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file is for backends that make requests to a modern client: the requests become an
// InputRequiredResult, and the client's retry continues the call (2026-07-28, Multi
// Round-Trip Requests). A server that speaks the revision itself does not need it.

// askedGrace is how long a reply with open requests of the backend waits for more of them, to pass them on together.
const askedGrace = 20 * time.Millisecond

// waits reports whether the backend has waited for the client for askedGrace. Then the reply ends with the backend's requests.
func (p *reply) waits(a *streaming.Alarm) bool {
	open := p.asked[:0:0]
	for _, q := range p.asked {
		if p.Session.Asks(q.ID) {
			open = append(open, q)
		}
	}
	if p.asked = open; len(open) == 0 {
		p.Asking = time.Time{}
		return false
	}
	if p.Asking.IsZero() {
		p.Asking = a.Now
	}
	if !a.Due(p.Asking.Add(askedGrace)) {
		return false
	}
	p.ends = p.inputRequired
	return true
}

// inputRequired returns the response that asks the client for input. The call ends if the client does not return in time.
func (p *reply) inputRequired() []byte {
	at := p.Reader.Cursor()
	wait := p.front.Sessions.Resumes().InputWait()
	if c := p.Session.CallAt(at.Stream.Number); c != nil {
		c.AwaitReturn(wait, "its client did not answer in time")
	}
	questions := []byte{'{'}
	for _, q := range p.asked {
		m := jsonrpc.Message{Raw: q.Message}
		questions = modern.AppendInput(questions, q.ID, &m)
	}
	result := []byte(`{"resultType":"` + protocol.ResultInputRequired + `"}`)
	result, _ = jsonrpc.Set(result, append(questions, '}'), "inputRequests")
	s := waitingState{number: at.Stream.Number, told: at.Seq, until: time.Now().Add(wait)}
	result, _ = jsonrpc.Set(result, jsonrpc.Quote(s.seal(p.Session, p.x.Modern.Sum, p.x.Apart())), "requestState")
	return jsonrpc.AppendResult(nil, p.x.Modern.ID, result)
}

// A waitingState is the content of a requestState: the call that waits for its client, the last message (told) that was written
// to the client, and when the state expires.
type waitingState struct {
	number, told uint64
	until        time.Time
	// free says that the state is bound to the call only, and not to a request: it was
	// made for a requests/resume, which does not have the first request.
	free bool
}

// statePrefix begins each requestState of Holdfast.
const statePrefix = "holdfast."

// sealInput is the purpose of a requestState's ticket.
const sealInput = "holdfast request state"

// freeState ends each free requestState.
const freeState = ".free"

// bound returns the data that a requestState is bound to beside the call, as a JSON string. sum is the request's, or "" for a
// free state: no request has that sum. credential tells anonymous clients apart ([exchange.Exchange.Apart]).
func (s *waitingState) bound(sum string, credential caller.Credential) []byte {
	parts := []string{hex.EncodeToString([]byte(sum)), strconv.FormatUint(s.told, 36), strconv.FormatInt(s.until.Unix(), 36)}
	if of := credential.Bytes(); of != nil {
		parts = append(parts, hex.EncodeToString(of))
	}
	return []byte(`"` + strings.Join(parts, ".") + `"`)
}

// seal returns the requestState for a request with a sum, "" if that is not known, and a credential.
func (s *waitingState) seal(of *session.Session, sum string, credential caller.Credential) string {
	text := statePrefix + strings.Join([]string{
		of.Tickets().Make(sealInput, s.number, s.bound(sum, credential)),
		strconv.FormatUint(s.told, 36), strconv.FormatInt(s.until.Unix(), 36),
	}, ".")
	if sum == "" {
		text += freeState
	}
	return text
}

// parseState parses a requestState. It does not check the seal.
func parseState(text string) (s waitingState, seal string, ok bool) {
	rest, free := strings.CutSuffix(strings.TrimPrefix(text, statePrefix), freeState)
	parts := strings.Split(rest, ".")
	if len(parts) != 4 || len(text) > 256 {
		return s, "", false
	}
	told, err1 := strconv.ParseUint(parts[2], 36, 64)
	until, err2 := strconv.ParseInt(parts[3], 36, 64)
	s.told, s.until, s.free = told, time.Unix(until, 0), free
	return s, parts[0] + "." + parts[1], err1 == nil && err2 == nil
}

// isWaitingState reports whether a request's requestState is Holdfast's, and not the backend's own.
func isWaitingState(m *jsonrpc.Message) bool {
	return strings.HasPrefix(jsonrpc.String(jsonrpc.Field(m.Params, "requestState")), statePrefix)
}

// errBadState refuses a requestState that is not valid for its request.
var errBadState = jsonrpc.Errorf(jsonrpc.CodeInvalidParams,
	"requestState is not valid: it is of another request or client (who sends another Authorization is one), has expired, or was used before; make the request again without it")

// goOn serves a retry that brings the input that a call waits for.
func (fr *Front) goOn(w http.ResponseWriter, x *exchange.Exchange) error {
	m := &x.Msgs[0]
	at, seal, ok := parseState(jsonrpc.String(jsonrpc.Field(m.Params, "requestState")))
	if !ok {
		return errBadState
	}
	sum := "" // the next requestState is free too
	if !at.free {
		sum = modern.SumOf(m)
	}
	s, number, err := fr.Sessions.FindSeal(sealInput, seal, at.bound(sum, x.Apart()), x.Principal)
	switch {
	case errors.Is(err, session.ErrNotFound), err == nil && time.Now().After(at.until):
		return errBadState
	case err != nil:
		return err
	}
	x.Session = s
	if !fr.checkParams(w, x) {
		return nil
	}
	call := s.CallAt(number)
	open, err := s.OpenRequests(x.HTTP.Context(), number, at.told)
	if len(open) == 0 && call == nil { // its node is lost, or the backend has not waited for the responses
		if end := s.Watched.EndOf(x.HTTP.Context(), number, at.told); end != nil {
			fr.write(w, x, fr.own(x, end))
			return nil
		}
		return errBadState
	}
	if err != nil {
		return err
	}
	p := fr.newReply(w, x, s, call)
	p.Door = observe.DoorInput
	p.x.Modern.Sum = sum
	if p.Call != nil {
		p.Call.Returned()
	}
	// Requests without a response are asked again.
	p.asked, err = modern.Respond(x.Values(), s, m, open)
	if err != nil {
		return err
	}
	if len(p.asked) < len(open) {
		s.Watched.Answered(number, at.told)
	}
	clear(x.Msgs)
	return p.answer(x.HTTP.Context(), number, at.told)
}
