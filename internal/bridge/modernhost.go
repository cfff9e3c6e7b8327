package bridge

import (
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"holdfast/backend"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A modernHost is a host of revision 2026-07-28 or later on stdio. It has exchanges, which may end
// before their calls: with an InputRequiredResult, after which the host makes the request again,
// or with a task. No lock is held while a message goes to the host or to the server.
type modernHost struct {
	b            *bridge
	conversation conversation
	taskAfter    time.Duration

	mu     sync.Mutex
	count  uint64               // of exchanges
	byHost map[string]*exchange // exchanges that the host waits for, by its ids
	states map[string]*exchange // by requestState
	tasks  map[string]*exchange // by the tasks' ids
	open   map[*exchange]struct{}
}

func (h *modernHost) begin(b *bridge, taskAfter time.Duration) {
	h.b, h.conversation.b, h.taskAfter = b, b, taskAfter
	h.byHost, h.states, h.tasks = make(map[string]*exchange), make(map[string]*exchange), make(map[string]*exchange)
	h.open = make(map[*exchange]struct{})
}

// isUsed reports whether the host has made a modern request.
func (h *modernHost) isUsed() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count > 0
}

// request handles a request of the host.
func (h *modernHost) request(m jsonrpc.Message) {
	if e := checkMeta(m); e != nil {
		h.b.host.fail(m.ID, e)
		return
	}
	if strings.HasPrefix(jsonrpc.String(jsonrpc.Field(m.Params, "requestState")), statePrefix) {
		h.again(m)
		return
	}
	switch m.Method {
	case protocol.MethodTaskGet, protocol.MethodTaskUpdate, protocol.MethodTaskCancel:
		if h.aboutTask(m) {
			return
		}
	}
	x := h.newExchange(m)
	if x == nil {
		h.b.host.fail(m.ID, jsonrpc.Errorf(jsonrpc.CodeInvalidRequest, "%v", errDuplicateID))
		return
	}
	if m.Method == protocol.MethodSubscriptions {
		var over bool
		if m, over = h.listenToTasks(x, m); over {
			return
		}
	}
	h.deliver(x, m)
}

// checkMeta checks the members that each request must have in _meta (2026-07-28, Overview, "_meta").
func checkMeta(m jsonrpc.Message) *jsonrpc.Error {
	version := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", protocol.MetaProtocolVersion))
	capabilities := jsonrpc.Field(m.Params, "_meta", protocol.MetaClientCapabilities)
	switch {
	case version == "":
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "params._meta must have %q", protocol.MetaProtocolVersion)
	case version != protocol.V20260728:
		e := jsonrpc.Errorf(protocol.CodeUnsupportedVersion, "protocol revision %.40q is not supported", version)
		e.Data, _ = json.Marshal(map[string]any{
			"supported": append([]string{protocol.V20260728}, protocol.Supported()...), "requested": fmt.Sprintf("%.40s", version),
		})
		return e
	case len(capabilities) == 0 || capabilities[0] != '{':
		return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "params._meta must have %q, an object", protocol.MetaClientCapabilities)
	}
	return nil
}

// newExchange begins an exchange with a request of the host. It returns nil if a request with
// the same id is in flight.
func (h *modernHost) newExchange(m jsonrpc.Message) *exchange {
	h.mu.Lock()
	defer h.mu.Unlock()
	key := string(jsonrpc.Key(m.ID))
	if h.byHost[key] != nil {
		return nil
	}
	h.count++
	x := &exchange{id: newExchangeID(h.count), hostID: m.ID, token: progressToken(m), method: m.Method}
	if protocol.TakesInput(m.Method) {
		x.params = m.Params
	}
	h.byHost[key], h.open[x] = x, struct{}{}
	if h.taskAfter > 0 && m.Method == protocol.MethodCallTool && knowsTasks(m) {
		h.patience(x)
	}
	return x
}

// deliver gives the request of an exchange to the conversation.
func (h *modernHost) deliver(x *exchange, m jsonrpc.Message) {
	if err := h.conversation.deliver(protocol.V20260728, h, mustParse(m.WithID(x.id)), x); err != nil {
		h.responded(x, mustParse(jsonrpc.AppendError(nil, x.id, jsonrpc.Errorf(jsonrpc.CodeServer, "%s was not delivered: %v", m.Method, err))))
	}
}

// tell gives a response or a notification to the conversation.
func (h *modernHost) tell(m jsonrpc.Message) {
	_ = h.conversation.deliver(protocol.V20260728, h, m, nil) // if the conversation has ended, so has the call that m is about
}

// cancel cancels a request that the host waits for. It reports whether there is such a request.
func (h *modernHost) cancel(hostID []byte) bool {
	h.mu.Lock()
	x := h.byHost[string(jsonrpc.Key(hostID))]
	ok := x != nil && x.move(left)
	var open []jsonrpc.Message
	if ok {
		h.forget(x)
		open, x.questions = x.questions, nil
	}
	h.mu.Unlock()
	if ok {
		h.refuse(open)
		h.withdraw(x, "the host cancelled the request")
	}
	return ok
}

// withdraw tells the server that the host does not want the response of an exchange.
func (h *modernHost) withdraw(x *exchange, reason string) {
	if x.listen != nil && x.listen.alone {
		return // the server does not know of it
	}
	params, _ := jsonrpc.Set(jsonrpc.Object("reason", reason), x.id, "requestId")
	h.tell(mustParse(jsonrpc.AppendRequest(nil, nil, protocol.MethodCancelled, params)))
}

// forget removes an exchange from the tables. h.mu is held.
func (h *modernHost) forget(x *exchange) {
	h.release(x)
	delete(h.open, x)
	if x.task != nil && h.tasks[x.task.id] == x {
		delete(h.tasks, x.task.id)
	}
	delete(h.states, x.input.state)
}

// release frees the host's id of an exchange. h.mu is held.
func (h *modernHost) release(x *exchange) {
	if key := string(jsonrpc.Key(x.hostID)); h.byHost[key] == x {
		delete(h.byHost, key)
	}
}

// Emit implements [backend.Sink].
func (h *modernHost) Emit(of backend.Call, m jsonrpc.Message) {
	x, _ := of.(*exchange)
	switch {
	case x == nil:
		// The message belongs to no request of the host. Only earlier revisions have such
		// messages.
	case m.Kind == jsonrpc.Response:
		h.responded(x, m)
	case m.Kind == jsonrpc.Request:
		h.asked(x, m)
	default:
		h.notified(x, m)
	}
}

// EmitUnrelated implements [backend.Sink].
func (h *modernHost) EmitUnrelated(m jsonrpc.Message) { h.Emit(nil, m) }

// Closed implements [backend.Sink].
func (h *modernHost) Closed(why error, _ bool) {
	h.mu.Lock()
	var lost []*exchange
	for x := range h.open {
		if x.state != settled {
			lost = append(lost, x)
		}
	}
	h.mu.Unlock()
	for _, x := range lost {
		h.responded(x, mustParse(jsonrpc.AppendError(nil, x.id, jsonrpc.Errorf(jsonrpc.CodeServer, "%v", why))))
	}
	h.b.start(h.conversation.close)
}

// responded takes the response to an exchange.
func (h *modernHost) responded(x *exchange, m jsonrpc.Message) {
	if h.notFound(x, m) {
		return
	}
	h.mu.Lock()
	open := x.questions
	x.questions = nil
	defer func() { h.refuse(open) }()
	if x.state == asking { // the host will come back for the response
		x.answer = m.Raw
		x.refused.Store(true)
		h.mu.Unlock()
		return
	}
	handed := x.state == isTask
	if !x.move(isAnswered) {
		h.mu.Unlock()
		return // the host does not want the response
	}
	if handed {
		x.answer = m.Raw
		x.refused.Store(true) // until the host asks
		h.settle(x)
		h.mu.Unlock()
		h.tellListens(x)
		return
	}
	h.forget(x)
	hostID := x.hostID
	h.mu.Unlock()
	if !h.b.host.write(h.shown(x, m, hostID)) {
		x.refused.Store(true)
	}
}

// refuse answers questions of the server with errors. The server may still wait for answers:
// the questions need not belong to the call that they were assigned to.
func (h *modernHost) refuse(questions []jsonrpc.Message) {
	for _, q := range questions {
		h.tell(mustParse(jsonrpc.AppendError(nil, q.ID, jsonrpc.Errorf(jsonrpc.CodeServer, "the client does not wait for the call any more"))))
	}
}

// shown returns a response as the host gets it.
func (h *modernHost) shown(x *exchange, m jsonrpc.Message, hostID []byte) []byte {
	if m.Error == nil {
		switch {
		case x.method == protocol.MethodDiscover && h.offersTasks():
			m.Raw, _ = jsonrpc.Set(m.Raw, []byte(`{}`), "result", "capabilities", "extensions", protocol.ExtensionTasks)
		case jsonrpc.Field(m.Result, "_meta", protocol.MetaSubscriptionID) != nil:
			m.Raw, _ = jsonrpc.Set(m.Raw, hostID, "result", "_meta", protocol.MetaSubscriptionID)
		}
	}
	raw, _ := jsonrpc.Set(m.Raw, hostID, "id")
	return raw
}

// notified takes a notification that belongs to an exchange.
func (h *modernHost) notified(x *exchange, m jsonrpc.Message) {
	raw, told := m.Raw, false
	h.mu.Lock()
	shows := x.state == waiting
	switch {
	case m.Method == protocol.MethodCancelled:
		if i := x.question(jsonrpc.Field(m.Params, "requestId")); i >= 0 {
			x.questions = append(x.questions[:i:i], x.questions[i+1:]...)
			told = x.state == isTask
		}
		shows = false
	case m.Method == protocol.MethodProgress && x.state == isTask:
		x.task.progressed(m)
	case m.Method == protocol.MethodProgress && x.token == nil:
		shows = false
	case m.Method == protocol.MethodProgress:
		raw, _ = jsonrpc.Set(raw, x.token, "params", "progressToken")
	case jsonrpc.Field(m.Params, "_meta", protocol.MetaSubscriptionID) != nil:
		raw, _ = jsonrpc.Set(raw, x.hostID, "params", "_meta", protocol.MetaSubscriptionID)
	}
	l := x.listen
	h.mu.Unlock()
	switch {
	case told:
		h.tellListens(x)
	case !shows:
	case l != nil && m.Method == protocol.MethodAcknowledged:
		h.acknowledge(x, raw)
	default:
		h.b.host.write(raw)
	}
}

// progressed notes the progress that the server reports of a task.
func (t *task) progressed(m jsonrpc.Message) {
	t.updated = time.Now()
	if text := jsonrpc.String(jsonrpc.Field(m.Params, "message")); text != "" {
		t.message = text
	}
}
