package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"sync"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/panics"
	"holdfast/internal/protocol"
	"holdfast/internal/session"
	"holdfast/internal/sse"
	"holdfast/jsonrpc"
)

// What follows is for the tasks of a listen whose sessions are not on this node. A listen of
// our own is placed with each session, as a client's would be: it is served by the session's
// owner, or here once the session has come here. It begins again after its node was lost.

// A taskFollower hears of such tasks.
type taskFollower struct {
	h     *Handler
	x     exchange // the client's
	meta  []byte   // of its request
	ready chan<- struct{}
	wait  sync.WaitGroup

	mu    sync.Mutex
	heard map[string]taskNews // by the tasks' ids, until it is told
}

// taskNews is what there is to tell of a task.
type taskNews struct {
	params []byte // of the notification; nil: nothing more is to be heard of the task
	tasktext.Text
}

// How long a follower waits before it asks again for what it did not hear the end of.
const (
	minFollowWait  = 100 * time.Millisecond
	mostFollowWait = 5 * time.Second
)

// follow begins to hear of tasks. ready is told when there is news.
func (f *taskFollower) follow(ctx context.Context, tasks []watchedTask) {
	groups := make(map[string][]taskID)
	for i := range tasks {
		if tasks[i].s == nil {
			name, _, _ := bytes.Cut([]byte(tasks[i].id.seal), []byte{'.'})
			groups[string(name)] = append(groups[string(name)], tasks[i].id)
		}
	}
	for _, ids := range groups {
		f.wait.Go(func() { f.run(ctx, ids) })
	}
}

// run hears of the tasks of one session, until all have ended or ctx is done.
func (f *taskFollower) run(ctx context.Context, ids []taskID) {
	wait := minFollowWait
	for {
		ids = slices.DeleteFunc(ids, f.isUnknown)
		if len(ids) == 0 {
			return
		}
		l := following{f: f, head: make(http.Header), open: ids}
		l.listen(ctx)
		if wait = min(2*wait, mostFollowWait); l.useful {
			wait = minFollowWait
		}
		if ids = l.open; len(ids) == 0 {
			return
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
	}
}

// isUnknown reports whether a task can't be asked for any more. Its client hears no more of
// it.
func (f *taskFollower) isUnknown(id taskID) bool {
	_, _, err := f.h.sessions.FindSeal(sealTask, id.seal, id.bound(), f.x.principal)
	if !errors.Is(err, session.ErrNotFound) {
		return false
	}
	f.tell(id.text, taskNews{})
	return true
}

// tell notes news of a task.
func (f *taskFollower) tell(id string, news taskNews) {
	f.mu.Lock()
	f.heard[id] = news
	f.mu.Unlock()
	session.Wake(f.ready)
}

// news returns what was heard of a task since it was last asked for.
func (f *taskFollower) news(id string) (taskNews, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.heard[id]
	delete(f.heard, id)
	return n, ok
}

// A following is one listen of a follower, and the [http.ResponseWriter] of what it hears.
type following struct {
	f      *taskFollower
	head   http.Header
	status int
	open   []taskID // of which more is to be heard
	agreed []string // the ids of those that are told of
	useful bool     // something was heard
}

// listen makes the listen, and returns when it is over.
func (l *following) listen(ctx context.Context) {
	texts := make([]string, len(l.open))
	for i := range l.open {
		texts[i] = l.open[i].text
	}
	list, _ := json.Marshal(texts)
	id := []byte(`"holdfast"`)
	params, _ := jsonrpc.Set([]byte(`{}`), list, "notifications", "taskIds")
	params, _ = jsonrpc.Set(params, l.f.meta, "_meta")
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, id, protocol.MethodSubscriptions, params))
	if err != nil {
		return
	}
	x := l.f.x
	own := *x.modern
	own.ID, own.follows = id, true
	x.modern, x.msgs, x.r = &own, []jsonrpc.Message{m}, x.r.WithContext(ctx)
	defer func() { // a stream of another node that breaks, or code of the user
		switch p := recover().(type) {
		case nil, *panics.Error:
		default:
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
		}
	}()
	l.f.h.serve(l, &x)
}

// Header implements [http.ResponseWriter].
func (l *following) Header() http.Header { return l.head }

// WriteHeader implements [http.ResponseWriter].
func (l *following) WriteHeader(status int) { l.status = status }

// Write implements [http.ResponseWriter]. What it gets are whole events, or an answer without
// events.
func (l *following) Write(text []byte) (int, error) {
	for events := sse.NewReader(bytes.NewReader(text), len(text)+1); ; {
		ev, err := events.Next()
		if err != nil {
			return len(text), nil //nolint:nilerr // the end of the text
		}
		if m, err := jsonrpc.Parse(ev.Data); err == nil {
			l.hear(m)
		}
	}
}

// hear takes one message of the listen.
func (l *following) hear(m jsonrpc.Message) {
	l.useful = true
	switch {
	case m.Method == protocol.MethodAcknowledged:
		l.agreed = nil
		_ = json.Unmarshal(jsonrpc.Field(m.Params, "notifications", "taskIds"), &l.agreed)
	case m.Method == protocol.MethodTaskStatus:
		n := taskNews{params: bytes.Clone(m.Params)}
		if json.Unmarshal(m.Params, &n.Text) != nil {
			return
		}
		l.f.tell(n.ID, n)
		if n.Ended() {
			l.open = slices.DeleteFunc(slices.Clone(l.open), func(id taskID) bool { return id.text == n.ID })
		}
	case m.Kind == jsonrpc.Response && m.Result != nil: // of those that it told of it has nothing more to tell
		l.open = slices.DeleteFunc(slices.Clone(l.open), func(id taskID) bool {
			over := slices.Contains(l.agreed, id.text)
			if over {
				l.f.tell(id.text, taskNews{})
			}
			return over
		})
	}
}
