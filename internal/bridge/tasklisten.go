package bridge

import (
	"encoding/json"
	"slices"
	"strings"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// This file adds tasks to subscriptions/listen: a host names tasks in the filter, and is told
// of each change of their status.

// A listen is the part of a subscriptions/listen request that is about tasks. Guarded by modernHost.mu.
type listen struct {
	tasks   []*exchange
	said    map[*exchange]string // the status and questions that the host was last told of each
	alone   bool                 // the request does not go to the server
	acked   bool                 // the acknowledgement is written or in queue
	queue   [][]byte             // messages for the host
	telling bool                 // a goroutine writes the queue
}

// listenToTasks takes the bridge's tasks out of the filter of a listen, and returns the request
// for the server. over says that there is no such request.
func (h *modernHost) listenToTasks(x *exchange, m jsonrpc.Message) (_ jsonrpc.Message, over bool) {
	var ids, rest []string
	raw := jsonrpc.Field(m.Params, "notifications", "taskIds")
	if raw == nil || json.Unmarshal(raw, &ids) != nil || !h.offersTasks() {
		return m, false
	}
	if !knowsTasks(m) {
		h.responded(x, mustParse(jsonrpc.AppendError(nil, x.id, errNoCapability())))
		return m, true
	}
	l := &listen{said: make(map[*exchange]string)}
	named := make(map[*exchange]bool)
	h.mu.Lock()
	for _, id := range ids {
		t := h.tasks[id]
		switch {
		case !strings.HasPrefix(id, taskPrefix):
			rest = append(rest, id)
		case t != nil && t.task.found && !named[t]:
			named[t] = true
			l.tasks = append(l.tasks, t)
		}
	}
	l.alone = len(rest) == 0 && tasktext.AsksForNothingElse(jsonrpc.Field(m.Params, "notifications"))
	x.listen = l
	h.mu.Unlock()
	list, _ := json.Marshal(append([]string{}, rest...))
	changed, _ := jsonrpc.Set(m.Raw, list, "params", "notifications", "taskIds")
	m = mustParse(changed)
	if l.alone {
		params, _ := jsonrpc.Set([]byte(`{"notifications":{}}`), m.ID, "_meta", protocol.MetaSubscriptionID)
		h.acknowledge(x, jsonrpc.AppendRequest(nil, nil, protocol.MethodAcknowledged, params))
	}
	return m, l.alone
}

// acknowledge tells the host which tasks it hears of, and their status.
func (h *modernHost) acknowledge(x *exchange, ack []byte) {
	l := x.listen
	ids := []string{}
	h.mu.Lock()
	for _, t := range l.tasks {
		ids = append(ids, t.task.id)
	}
	list, _ := json.Marshal(ids)
	ack, _ = jsonrpc.Set(ack, list, "params", "notifications", "taskIds")
	l.queue, l.acked = append(l.queue, ack), true
	h.mu.Unlock()
	h.tellListen(x)
}

// tellListens tells all listens to a task that the task has changed.
func (h *modernHost) tellListens(task *exchange) {
	h.mu.Lock()
	var all []*exchange
	for x := range h.open {
		if x.listen != nil && slices.Contains(x.listen.tasks, task) {
			all = append(all, x)
		}
	}
	h.mu.Unlock()
	for _, x := range all {
		h.tellListen(x)
	}
}

// tellListen tells the host of the changes of a listen's tasks, in order. It ends a listen that
// has nothing more to tell.
func (h *modernHost) tellListen(x *exchange) {
	l := x.listen
	h.mu.Lock()
	defer h.mu.Unlock()
	if !l.acked || l.telling {
		return // the goroutine that writes looks again
	}
	l.telling = true
	defer func() { l.telling = false }()
	for {
		h.collect(x)
		ends := l.alone && len(l.queue) == 0 && !slices.ContainsFunc(l.tasks, func(t *exchange) bool { return t.state == isTask })
		if ends && x.move(isAnswered) {
			h.forget(x)
			result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
			result, _ = jsonrpc.Set(result, x.hostID, "_meta", protocol.MetaSubscriptionID)
			l.queue = append(l.queue, jsonrpc.AppendResult(nil, x.hostID, result))
		}
		if len(l.queue) == 0 {
			return
		}
		queue := l.queue
		l.queue = nil
		h.mu.Unlock()
		for _, text := range queue {
			h.b.host.write(text)
		}
		h.mu.Lock()
	}
}

// collect queues the changes that the host was not told. h.mu is held.
func (h *modernHost) collect(x *exchange) {
	l := x.listen
	if x.state != waiting {
		return
	}
	for _, t := range l.tasks {
		told := t.status() + " " + string(t.inputRequests())
		if told == l.said[t] {
			continue
		}
		l.said[t] = told
		params, _ := jsonrpc.Set(t.tell(""), x.hostID, "_meta", protocol.MetaSubscriptionID)
		l.queue = append(l.queue, jsonrpc.AppendRequest(nil, nil, protocol.MethodTaskStatus, params))
	}
}

// endListens answers the requests to listen, which nothing else would end.
func (h *modernHost) endListens() {
	h.mu.Lock()
	var ids [][]byte
	for x := range h.open {
		if x.method == protocol.MethodSubscriptions && x.state == waiting {
			ids = append(ids, x.hostID)
		}
	}
	h.mu.Unlock()
	for _, id := range ids {
		if h.cancel(id) {
			result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
			result, _ = jsonrpc.Set(result, id, "_meta", protocol.MetaSubscriptionID)
			h.b.host.write(jsonrpc.AppendResult(nil, id, result))
		}
	}
}
