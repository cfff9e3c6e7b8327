package server

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// What follows adds tasks to subscriptions/listen: a client names them in the filter, and is
// told of each change of their status. Those of other nodes are heard of there, see
// taskfollow.go.

// mostTasks bounds the tasks of one listen.
const mostTasks = 1000

// A taskListen is what a listen has to do with tasks.
type taskListen struct {
	tasks []watchedTask
	alone bool // there is nothing to ask the backend for
	acked bool // the client knows of which it hears

	far     *taskFollower // nil if all tasks are on this node
	unwatch context.CancelFunc
}

// A watchedTask is a task that a listen tells of.
type watchedTask struct {
	id     taskID
	s      *session.Session // nil if it is not on this node
	number uint64
	stop   func()
	told   string // what the client was told last: its status, and what it asks for
	over   bool
}

// listenToTasks takes the tasks of ours out of the filter of a listen. An error says that it
// is not served here.
func (h *Handler) listenToTasks(x *exchange) (l *taskListen, err error) {
	m := &x.msgs[0]
	var ids, rest []string
	if raw := jsonrpc.Field(m.Params, "notifications", "taskIds"); raw == nil || json.Unmarshal(raw, &ids) != nil || !h.hasTasks() {
		return nil, nil // the backend says what is wrong
	}
	switch {
	case !x.modern.knowsTasks():
		return nil, errNoCapability()
	case len(ids) > mostTasks:
		return nil, errf(jsonrpc.CodeInvalidParams, "more than %d taskIds", mostTasks)
	}
	l = &taskListen{}
	var away *session.Redirect
	for _, text := range ids {
		id, ours := parseTaskID(text)
		if !ours {
			rest = append(rest, text)
			continue
		}
		s, number, err := h.sessions.FindSeal(sealTask, id.seal, id.bound(), x.principal)
		switch {
		case err == nil:
			l.tasks = append(l.tasks, watchedTask{id: id, s: s, number: number})
		case errors.Is(err, session.ErrNotFound): // it is not acknowledged
		case !errors.As(err, &away):
			return nil, err
		case x.from == nil && !x.modern.follows:
			l.tasks = append(l.tasks, watchedTask{id: id})
			h.followTasks(x, l)
		}
	}
	l.alone = len(rest) == 0 && tasktext.AsksForNothingElse(jsonrpc.Field(m.Params, "notifications"))
	if l.alone && len(l.tasks) == 0 && away != nil {
		return nil, away
	}
	list, _ := json.Marshal(append([]string{}, rest...))
	raw, _ := jsonrpc.Set(m.Raw, list, "params", "notifications", "taskIds")
	changed, err := jsonrpc.Parse(raw)
	if err == nil {
		*m = changed
	}
	return l, err
}

// followTasks prepares to hear of tasks that are not on this node.
func (h *Handler) followTasks(x *exchange, l *taskListen) {
	if l.far != nil {
		return
	}
	l.far = &taskFollower{h: h, x: *x, meta: jsonrpc.Field(x.msgs[0].Params, "_meta"), heard: make(map[string]taskNews)}
	l.far.x.session, l.far.x.msgs = nil, nil
}

// watch has the reply woken when a task changes.
func (l *taskListen) watch(ctx context.Context, ready chan<- struct{}) {
	for i := range l.tasks {
		if t := &l.tasks[i]; t.s != nil {
			t.stop = t.s.Watch(t.number, ready)
		}
	}
	if l.far != nil {
		ctx, l.unwatch = context.WithCancel(ctx)
		l.far.ready = ready
		l.far.follow(ctx, l.tasks)
	}
}

// close ends that.
func (l *taskListen) close() {
	if l == nil {
		return
	}
	for i := range l.tasks {
		if l.tasks[i].stop != nil {
			l.tasks[i].stop()
		}
	}
	if l.unwatch != nil {
		l.unwatch()
		l.far.wait.Wait()
	}
}

// filter adds the tasks to the filter of an acknowledgement.
func (l *taskListen) filter(ack []byte) []byte {
	var ids []string
	if raw := jsonrpc.Field(ack, "params", "notifications", "taskIds"); raw != nil {
		_ = json.Unmarshal(raw, &ids) // the backend's own
	}
	for i := range l.tasks {
		ids = append(ids, l.tasks[i].id.text)
	}
	if ids == nil {
		return ack
	}
	list, _ := json.Marshal(ids)
	ack, _ = jsonrpc.Set(ack, list, "params", "notifications", "taskIds")
	return ack
}

// tellTasks tells the client of tasks that have changed, and reports whether the listen has
// nothing more to tell of.
func (p *reply) tellTasks() (over bool, err error) {
	l := p.listen
	var text []byte
	if l.alone && !l.acked {
		l.acked = true
		ack := []byte(`{"jsonrpc":"2.0","method":"` + protocol.MethodAcknowledged + `","params":{"notifications":{}}}`)
		ack, _ = jsonrpc.Set(ack, p.x.modern.id, "params", "_meta", protocol.MetaSubscriptionID)
		text = sse.AppendMessage(text, nil, l.filter(ack))
	}
	if !l.acked {
		return false, nil
	}
	over = l.alone
	for i := range l.tasks {
		t := &l.tasks[i]
		if !t.over {
			text = p.tellTask(text, t)
		}
		over = over && t.over
	}
	if len(text) > 0 {
		err = p.say(text, false)
	}
	return over, err
}

// tellTask appends a notification about a task, if it has changed.
func (p *reply) tellTask(text []byte, t *watchedTask) []byte {
	if t.s == nil {
		n, ok := p.listen.far.news(t.id.text)
		if !ok {
			return text
		}
		if t.over = n.params == nil; t.over {
			return text
		}
		return p.notifyTask(text, t, &n.Text, n.params)
	}
	st, err := t.s.Standing(p.x.values(), t.number)
	if err != nil {
		t.over = true // its client asks, and hears why
		return text
	}
	is := p.h.tellTask(&t.id, &st, "")
	return p.notifyTask(text, t, is, is.JSON())
}

// notifyTask appends a notification, unless it says what its client was told last.
func (p *reply) notifyTask(text []byte, t *watchedTask, is *tasktext.Text, params []byte) []byte {
	told := is.Status
	if is.Asked != nil {
		asked := make(map[string]bool)
		jsonrpc.Each(is.Asked, func(name, _ []byte) { asked[string(name)] = true })
		told += strings.Join(slices.Sorted(maps.Keys(asked)), " ")
	}
	if told == t.told {
		return text
	}
	t.told, t.over = told, is.Ended()
	params, _ = jsonrpc.Set(params, p.x.modern.id, "_meta", protocol.MetaSubscriptionID)
	return sse.AppendMessage(text, nil, jsonrpc.AppendRequest(nil, nil, protocol.MethodTaskStatus, params))
}

// endListen ends a listen, for a reason.
func (p *reply) endListen(why string) []byte {
	if c := p.s.CallAt(p.r.Cursor().Stream.Number); c != nil {
		c.Withdraw(why)
	}
	return listenEnded(p.x.modern.id)
}

// listenEnded returns the response that ends the listen with an id.
func listenEnded(id []byte) []byte {
	result := []byte(`{"resultType":"` + protocol.ResultComplete + `"}`)
	result, _ = jsonrpc.Set(result, id, "_meta", protocol.MetaSubscriptionID)
	return jsonrpc.AppendResult(nil, id, result)
}

// listenModern serves a listen that names tasks.
func (h *Handler) listenModern(w http.ResponseWriter, x *exchange, l *taskListen) error {
	id := x.session.NextID()
	x.msgs[0].Raw = x.msgs[0].WithID(id)
	x.msgs[0].ID = id
	b, err := h.beginModern(x, h.origin(x))
	if err != nil {
		return err
	}
	began := time.Now()
	b.call.Promote()
	if !l.alone {
		b.deliver(x.values(), x.msgs, x.r.Header)
	}
	p := h.newReply(w, x, b.session, b.call)
	p.began, p.listen = began, l
	l.watch(x.values(), p.ready)
	defer l.close()
	return p.answer(x.r.Context(), b.call.Number(), 0)
}
