package task

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/internal/reading"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file adds tasks to subscriptions/listen: a client names them in the filter, and is
// told of each change of their status. For tasks on other nodes see follow.go.

// mostTasks bounds the tasks of one listen.
const mostTasks = 1000

// A Listen has the tasks of a subscriptions/listen: a [modern.Listen].
type Listen struct {
	of    *Tasks
	q     *modern.Request
	tasks []watchedTask
	alone bool // the filter asks for nothing of the backend's

	far     *follower // nil if all tasks are on this node
	unwatch context.CancelFunc
	ready   chan<- struct{}

	// After an error of the store:
	next  int           // the first task of the next pass: the one behind the task that failed, which may fail each time
	wait  time.Duration // until the next pass; 0: the last one had no error
	due   time.Time     // when the next pass is
	again *time.Timer   // wakes ready then; nil: there was no error
}

// After an error of the store the tasks are read again: after readAgain at first, and after twice the time with each error, up to latestAgain.
const (
	readAgain   = time.Second
	latestAgain = 30 * time.Second
	// readWithin bounds how long the store may take for a task.
	readWithin = 5 * time.Second
)

// A watchedTask is a task in the filter of a listen.
type watchedTask struct {
	id     taskID
	s      *session.Session // nil if the task is on another node
	number uint64
	stop   func()
	told   string // the task's status and open requests, as last sent to the client
	over   bool
}

// Continues reports whether a message is about existing tasks.
func (*Tasks) Continues(m *jsonrpc.Message) bool {
	return isTaskMethod(m.Method) || m.Method == protocol.MethodSubscriptions && jsonrpc.Field(m.Params, "notifications", "taskIds") != nil
}

// Listen takes Holdfast's tasks out of the filter of a listen; nil: the filter has no tasks. After an error the listen is
// not served here. again makes a listen of this node's own on other nodes; nil: tasks there are left out.
func (t *Tasks) Listen(q *modern.Request, m *jsonrpc.Message, again modern.Again) (modern.Listen, error) {
	var ids, rest []string
	if raw := jsonrpc.Field(m.Params, "notifications", "taskIds"); raw == nil || json.Unmarshal(raw, &ids) != nil || t.after == 0 {
		return nil, nil // the backend refuses an invalid filter
	}
	switch {
	case !knows(q):
		return nil, modern.Missing(protocol.ExtensionTasks)
	case len(ids) > mostTasks:
		return nil, jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "more than %d taskIds", mostTasks)
	}
	l := &Listen{of: t, q: q}
	var away *session.Redirect
	named := make(map[string]bool, len(ids))
	for _, text := range ids {
		if named[text] {
			continue // the client is told of a task once, and the last news of it is for all that name it
		}
		named[text] = true
		id, ours := parseTaskID(text)
		if !ours {
			rest = append(rest, text)
			continue
		}
		s, number, err := t.sessions.FindSeal(sealTask, id.seal, id.bound(), q.Principal)
		switch {
		case err == nil:
			l.tasks = append(l.tasks, watchedTask{id: id, s: s, number: number})
		case errors.Is(err, session.ErrNotFound): // the task is not acknowledged
		case !errors.As(err, &away):
			return nil, err
		case again != nil:
			l.tasks = append(l.tasks, watchedTask{id: id})
			l.follow(m, again)
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

// follow prepares a follower for tasks on other nodes.
func (l *Listen) follow(m *jsonrpc.Message, again modern.Again) {
	if l.far == nil {
		l.far = &follower{of: l.of, q: l.q, again: again, meta: jsonrpc.Field(m.Params, "_meta"), heard: make(map[string]news)}
	}
}

// Alone implements [modern.Listen].
func (l *Listen) Alone() bool { return l.alone }

// Watch implements [modern.Listen].
func (l *Listen) Watch(ctx context.Context, ready chan<- struct{}) {
	l.ready = ready
	for i := range l.tasks {
		if t := &l.tasks[i]; t.s != nil {
			t.stop = t.s.Watched.Watch(t.number, ready)
		}
	}
	if l.far != nil {
		ctx, l.unwatch = context.WithCancel(ctx)
		l.far.ready = ready
		l.far.follow(ctx, l.tasks)
	}
}

// Close implements [modern.Listen].
func (l *Listen) Close() {
	for i := range l.tasks {
		if l.tasks[i].stop != nil {
			l.tasks[i].stop()
		}
	}
	if l.again != nil {
		l.again.Stop()
	}
	if l.unwatch != nil {
		l.unwatch()
		l.far.wait.Wait()
	}
}

// Filter implements [modern.Listen].
func (l *Listen) Filter(ack []byte) []byte {
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

// News implements [modern.Listen]: the notifications of tasks that have changed. After an error of the store it reads no more tasks.
func (l *Listen) News() (news [][]byte, ended string) {
	over, away := l.alone, false
	for i, first := 0, l.next; i < len(l.tasks); i++ {
		at := (first + i) % len(l.tasks)
		t := &l.tasks[at]
		switch {
		case t.over:
		case t.s == nil:
			news = l.hear(news, t)
		case !away:
			if news, away = l.tell(news, t); away {
				l.next = at + 1
			}
		}
		over = over && t.over
	}
	if away {
		l.wakeLater()
	} else {
		l.wait, l.due = 0, time.Time{}
	}
	if over {
		ended = "all its tasks have ended"
	}
	return news, ended
}

// hear appends a notification about a task on another node, if there is one.
func (l *Listen) hear(to [][]byte, t *watchedTask) [][]byte {
	n, ok := l.far.news(t.id.text)
	if !ok {
		return to
	}
	if t.over = n.params == nil; t.over {
		return to
	}
	return l.notify(to, t, &n.Text, n.params)
}

// tell appends a notification about a task, if it has changed. away reports that the store could not tell.
func (l *Listen) tell(to [][]byte, t *watchedTask) (_ [][]byte, away bool) {
	ctx, stop := context.WithTimeout(l.q.Values(), readWithin)
	defer stop()
	st, err := t.s.Watched.Standing(ctx, t.number)
	if err != nil {
		t.over = errors.Is(err, session.ErrNotFound) || errors.Is(err, session.ErrMoved) // the client asks for the task, and gets the error
		return to, !t.over
	}
	is := l.of.text(&t.id, &st, "")
	return l.notify(to, t, is, is.JSON()), false
}

// wakeLater has the tasks read again: the store may be away for a moment. A change of a task has them read before.
func (l *Listen) wakeLater() {
	now := time.Now()
	if now.Before(l.due) {
		return
	}
	l.wait = min(max(2*l.wait, readAgain), latestAgain)
	l.due = now.Add(l.wait)
	if l.again != nil {
		l.again.Reset(l.wait)
		return
	}
	l.again = time.AfterFunc(l.wait, func() { reading.Wake(l.ready) })
}

// notify appends a notification, unless the status and the open requests are as last sent.
func (l *Listen) notify(to [][]byte, t *watchedTask, is *tasktext.Text, params []byte) [][]byte {
	told := is.Status
	if is.Asked != nil {
		asked := make(map[string]bool)
		jsonrpc.Each(is.Asked, func(name, _ []byte) { asked[string(name)] = true })
		told += strings.Join(slices.Sorted(maps.Keys(asked)), " ")
	}
	if told == t.told {
		return to
	}
	t.told, t.over = told, is.Ended()
	params, _ = jsonrpc.Set(params, l.q.ID, "_meta", protocol.MetaSubscriptionID)
	return append(to, jsonrpc.AppendRequest(nil, nil, protocol.MethodTaskStatus, params))
}
