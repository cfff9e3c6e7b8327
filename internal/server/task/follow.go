package task

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
	"holdfast/internal/reading"
	"holdfast/internal/server/modern"
	"holdfast/internal/session"
	"holdfast/jsonrpc"
)

// This file follows the tasks of a listen that are in sessions of other nodes. It places a listen
// of this node's own with each session, as a client's would be: the session's owner serves it, or
// this node once the session has come here. It begins again after its node was lost.

// A follower gets the notifications of such tasks.
type follower struct {
	of    *Tasks
	q     *modern.Request // the client's
	again modern.Again
	meta  []byte // of the client's request
	ready chan<- struct{}
	wait  sync.WaitGroup

	mu    sync.Mutex
	heard map[string]news // news that the client was not sent yet, by the tasks' ids
}

// news is the latest notification of a task.
type news struct {
	params []byte // of the notification; nil: the task has no more
	tasktext.Text
}

// How long a follower waits before it listens again to tasks that have not ended.
const (
	minFollowWait  = 100 * time.Millisecond
	mostFollowWait = 5 * time.Second
)

// follow starts a listen for each session of the tasks that are on other nodes. f.ready is
// signalled when there is news.
func (f *follower) follow(ctx context.Context, tasks []watchedTask) {
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

// run listens to the tasks of one session, until all have ended or ctx is done.
func (f *follower) run(ctx context.Context, ids []taskID) {
	wait := minFollowWait
	for {
		ids = slices.DeleteFunc(ids, f.isUnknown)
		if len(ids) == 0 {
			return
		}
		l := following{f: f, open: ids}
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

// isUnknown reports whether a task can't be found any more. If so, it notes that the task
// has no more news.
func (f *follower) isUnknown(id taskID) bool {
	_, _, err := f.of.sessions.FindSeal(sealTask, id.seal, id.bound(), f.q.Principal)
	if !errors.Is(err, session.ErrNotFound) {
		return false
	}
	f.tell(id.text, news{})
	return true
}

// tell notes news of a task.
func (f *follower) tell(id string, n news) {
	f.mu.Lock()
	f.heard[id] = n
	f.mu.Unlock()
	reading.Wake(f.ready)
}

// news returns the news of a task since the last call.
func (f *follower) news(id string) (news, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, ok := f.heard[id]
	delete(f.heard, id)
	return n, ok
}

// A following is one listen of a follower.
type following struct {
	f      *follower
	open   []taskID // that have not ended
	agreed []string // the ids in the acknowledgement
	useful bool     // a message has come
}

// listen makes the request, and returns when its stream has ended.
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
	defer func() { // another node's stream has broken, or the application's code has panicked
		switch p := recover().(type) {
		case nil, *panics.Error:
		default:
			if err, ok := p.(error); !ok || !errors.Is(err, http.ErrAbortHandler) {
				panic(p)
			}
		}
	}()
	l.f.again(ctx, m, func(message []byte) {
		if m, err := jsonrpc.Parse(message); err == nil {
			l.hear(m)
		}
	})
}

// hear handles one message of the listen.
func (l *following) hear(m jsonrpc.Message) {
	l.useful = true
	switch {
	case m.Method == protocol.MethodAcknowledged:
		l.agreed = nil
		_ = json.Unmarshal(jsonrpc.Field(m.Params, "notifications", "taskIds"), &l.agreed)
	case m.Method == protocol.MethodTaskStatus:
		n := news{params: bytes.Clone(m.Params)}
		if json.Unmarshal(m.Params, &n.Text) != nil {
			return
		}
		l.f.tell(n.ID, n)
		if n.Ended() {
			l.open = slices.DeleteFunc(slices.Clone(l.open), func(id taskID) bool { return id.text == n.ID })
		}
	case m.Kind == jsonrpc.Response && m.Result != nil: // the acknowledged tasks have no more news
		l.open = slices.DeleteFunc(slices.Clone(l.open), func(id taskID) bool {
			over := slices.Contains(l.agreed, id.text)
			if over {
				l.f.tell(id.text, news{})
			}
			return over
		})
	}
}
