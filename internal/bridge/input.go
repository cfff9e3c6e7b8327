package bridge

import (
	"crypto/rand"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file is for servers that ask a modern host questions: these become an
// InputRequiredResult, and the host's retry continues the call (2026-07-28, Multi Round-Trip
// Requests). A modern server makes such results itself.

const (
	// statePrefix begins each requestState of a bridge. A requestState without it is the server's.
	statePrefix = "holdfast-connect."
	// askedGrace is how long the bridge waits for more questions after the first, to ask them together.
	askedGrace = 20 * time.Millisecond
	// inputWait is how long a call waits for its host's input.
	inputWait = time.Hour
)

// asked takes a question of the server.
func (h *modernHost) asked(x *exchange, m jsonrpc.Message) {
	h.mu.Lock()
	again := x.question(m.ID) >= 0
	if x.state >= settled || again {
		h.mu.Unlock()
		if !again {
			h.refuse([]jsonrpc.Message{m})
		}
		return
	}
	x.questions = append(x.questions, m)
	first, handed := x.state == waiting && len(x.questions) == 1, x.state == isTask
	if handed {
		x.task.updated = time.Now()
	}
	h.mu.Unlock()
	switch {
	case handed:
		h.tellListens(x)
	case first:
		h.askSoon(x)
	}
}

// askSoon calls ask after askedGrace.
func (h *modernHost) askSoon(x *exchange) {
	time.AfterFunc(askedGrace, func() { h.b.start(func() { h.ask(x) }) })
}

// ask ends a request of the host with the questions, if there are any.
func (h *modernHost) ask(x *exchange) {
	h.mu.Lock()
	if len(x.questions) == 0 || !x.move(asks) {
		h.mu.Unlock()
		return
	}
	h.release(x)
	x.input.state = statePrefix + rand.Text()
	h.states[x.input.state] = x
	x.timer = time.AfterFunc(inputWait, func() { h.b.start(func() { h.giveUp(x) }) })
	result := []byte(`{"resultType":"` + protocol.ResultInputRequired + `"}`)
	result, _ = jsonrpc.Set(result, x.inputRequests(), "inputRequests")
	result, _ = jsonrpc.Set(result, jsonrpc.Quote(x.input.state), "requestState")
	hostID := x.hostID
	h.mu.Unlock()
	h.b.host.write(jsonrpc.AppendResult(nil, hostID, result))
}

// giveUp ends an exchange that the host has not come back to.
func (h *modernHost) giveUp(x *exchange) {
	h.mu.Lock()
	ok := x.state == asking && x.move(left)
	var open []jsonrpc.Message
	if ok {
		h.forget(x)
		open, x.questions = x.questions, nil
	}
	answered := x.answer != nil
	h.mu.Unlock()
	switch {
	case !ok:
	case answered:
		h.b.drop(x)
	default:
		h.refuse(open)
		h.withdraw(x, "the host did not answer in time")
	}
}

// errBadState refuses a requestState that is not valid for a request.
var errBadState = jsonrpc.Errorf(jsonrpc.CodeInvalidParams,
	"requestState is not valid: it is of another request or process, has expired, or was used before; make the request again without it")

// again handles a request that the host makes again, with the input that the server has asked for.
func (h *modernHost) again(m jsonrpc.Message) {
	key := string(jsonrpc.Key(m.ID))
	h.mu.Lock()
	x := h.states[jsonrpc.String(jsonrpc.Field(m.Params, "requestState"))]
	if x == nil || h.byHost[key] != nil || !sameRequest(x, m) || !x.move(returns) {
		h.mu.Unlock()
		h.b.host.fail(m.ID, errBadState)
		return
	}
	delete(h.states, x.input.state)
	x.hostID, x.token, x.input.state = m.ID, progressToken(m), ""
	h.byHost[key] = x
	answer := x.answer
	if answer == nil && h.taskAfter > 0 && x.method == protocol.MethodCallTool && knowsTasks(m) {
		h.patience(x)
	}
	h.mu.Unlock()
	if answer != nil { // the server has not waited for the input
		x.refused.Store(false)
		h.responded(x, mustParse(answer))
		if !x.refused.Load() {
			h.b.drop(x)
		}
		return
	}
	if h.reply(x, m) > 0 {
		h.askSoon(x) // for the missing input
	}
}

// sameRequest reports whether a request is the one that an exchange began with.
func sameRequest(x *exchange, m jsonrpc.Message) bool {
	params := without(without(m.Params, "inputResponses"), "requestState")
	before := without(without(x.params, "inputResponses"), "requestState")
	return x.method == m.Method && fingerprintOf(m.Method, params) == fingerprintOf(x.method, before)
}

// reply hands the input in a request of the host to the server. It returns how many questions
// have no response yet.
func (h *modernHost) reply(x *exchange, m jsonrpc.Message) (missing int) {
	var replies []jsonrpc.Message
	h.mu.Lock()
	results := make(map[string][]byte, len(x.questions))
	for i := range x.questions {
		results[inputKey(x.questions[i].ID)] = nil
	}
	h.mu.Unlock()
	jsonrpc.Each(jsonrpc.Field(m.Params, "inputResponses"), func(name, value []byte) {
		if _, wanted := results[string(name)]; wanted {
			results[string(name)] = value
		}
	})
	h.mu.Lock()
	rest := make([]jsonrpc.Message, 0, len(x.questions))
	for i := range x.questions {
		q := &x.questions[i]
		result := results[inputKey(q.ID)]
		if len(result) == 0 || result[0] != '{' {
			rest = append(rest, *q)
			continue
		}
		replies = append(replies, mustParse(jsonrpc.AppendResult(nil, q.ID, result)))
	}
	x.questions = rest
	h.mu.Unlock()
	for _, r := range replies {
		h.tell(r)
	}
	return len(rest)
}
