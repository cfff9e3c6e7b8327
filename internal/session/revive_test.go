package session

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"holdfast/internal/caller"
	"holdfast/internal/engine/memory"
	"holdfast/internal/mcptest"
	"holdfast/internal/revival"
	"holdfast/internal/sessionid"
	"holdfast/jsonrpc"
	"holdfast/stream"
)

// slowStore calls begins before it lets a session begin again.
type slowStore struct {
	*memory.Store
	begins func(stream.SessionKey)
}

func (st *slowStore) CreateUnder(ctx context.Context, key stream.SessionKey, epoch uint64) (stream.Lease, error) {
	st.begins(key)
	return st.Store.CreateUnder(ctx, key, epoch)
}

// A session that begins again is not found before the node has its lease: a message in it would be lost before that. A second request waits.
func TestReviveTwice(t *testing.T) {
	t.Parallel()
	opts := func() Options {
		return Options{Revival: revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})}
	}
	ann := caller.At("", "ann")
	before := newHouse(t, opts(), nil)
	s, err := before.New(newRequest(), ann, false, []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	before.close()
	var second *Session
	done, asked := make(chan error, 1), make(chan struct{})
	store := &slowStore{Store: memory.New(memory.Options{})}
	h := newHouse(t, opts(), func(was stream.Store) stream.Store { _ = was.Close(); return store })
	defer h.close()
	store.begins = func(stream.SessionKey) {
		if _, err := h.Find(id, ann); !errors.Is(err, ErrNotFound) {
			t.Errorf("found before it has begun: %v", err)
		}
		go func() {
			close(asked)
			s, err := h.Revive(t.Context(), id, ann, newRequest(), "")
			second = s
			done <- err
		}()
		<-asked
	}
	first, err := h.Revive(t.Context(), id, ann, newRequest(), "")
	if err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil || second != first {
		t.Errorf("the second request gets another session: %v", err)
	}
	if found, err := h.Find(id, ann); err != nil || found != first || found.leased().Epoch == 0 {
		t.Errorf("not found once it has begun: %v", err)
	}
}

// The client of a session that begins again in a store that no other node shares finds its calls among all that it can resume.
func TestReviveResumable(t *testing.T) {
	t.Parallel()
	opts := func() Options {
		return Options{Revival: revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})}
	}
	ann := caller.At("", "ann")
	before := newHouse(t, opts(), nil)
	s, err := before.New(newRequest(), ann, false, []byte(`{"protocolVersion":"2025-11-25","capabilities":{"resumableRequests":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	before.close()
	h := newHouse(t, opts(), nil)
	defer h.close()
	if s, err = h.Revive(t.Context(), id, ann, newRequest(), ""); err != nil {
		t.Fatal(err)
	}
	begin(t, s, false, request(1))
	if all := h.Resumes().All(ann, nil, Range{}); len(all) != 1 || string(all[0].RequestID) != "1" {
		t.Errorf("the requests that can be resumed are %v", all)
	}
	h.End(s)
	if all := h.SessionsOf(ann, Range{}); len(all) != 0 {
		t.Errorf("%d sessions are known after the end", len(all))
	}
}

// A taskService defers calls with the param "task".
type taskService struct{ deferring }

func (taskService) Defers(m *jsonrpc.Message) bool { return jsonrpc.Field(m.Params, "task") != nil }

// revivedWithTasks returns a session that has begun again at a node that defers calls.
func revivedWithTasks(t *testing.T) (*house, *Session) {
	t.Helper()
	opts := func() Options {
		return Options{
			Polls: true, Services: []func(*Manager, *Options) Service{func(*Manager, *Options) Service { return taskService{} }},
			Revival: revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}}),
		}
	}
	before := newHouse(t, opts(), nil)
	s, err := before.New(newRequest(), caller.Principal{}, false, []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	before.close()
	h := newHouse(t, opts(), nil)
	if s, err = h.Revive(t.Context(), id, caller.Principal{}, newRequest(), ""); err != nil {
		t.Fatal(err)
	}
	return h, s
}

// The first request of a session that begins again may be one that a service answers or defers: it is known by then what is offered.
func TestReviveOffers(t *testing.T) {
	t.Parallel()
	h, s := revivedWithTasks(t)
	defer h.close()
	for _, test := range []struct {
		params         string
		opened, defers bool
	}{{`{"name":"x"}`, false, false}, {`{"name":"x","task":{}}`, true, true}} {
		m := mcptest.Parse(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":` + test.params + `}`)
		if _, defers, err := s.Home(t.Context(), &m, nil); err != nil || defers != test.defers || (h.desk.opened() > 0) != test.opened {
			t.Errorf("%s: deferred %v, %v; %d servers are open", test.params, defers, err, h.desk.opened())
		}
	}
}

// A server that does not start is started once for the first request of a session that begins again, whose answer says why.
func TestReviveOffersInVain(t *testing.T) {
	t.Parallel()
	h, s := revivedWithTasks(t)
	defer h.close()
	starts := 0
	h.desk.err, h.desk.slow = errors.New("no such file"), func() { starts++ }
	for i := range 3 {
		text := fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x","task":{}}}`, i)
		m := mcptest.Parse(text)
		if _, defers, err := s.Home(t.Context(), &m, nil); err != nil || defers {
			t.Fatal(defers, err)
		}
		answers, done := begin(t, s, true, text).Wait(t.Context(), 0)
		if !done || len(answers) != 1 || !strings.Contains(string(answers[0]), "no such file") || starts != i+1 {
			t.Errorf("started %d times for %d requests; answered %v: %q", starts, i+1, done, answers)
		}
	}
}

// Subscriptions of a session that begins again count for the memory that it holds, until its client ends them.
func TestReviveSubscribed(t *testing.T) {
	t.Parallel()
	keys := revival.New(revival.Options{Life: time.Hour, Keys: []sessionid.Key{{1}}})
	h := newHouse(t, Options{Revival: keys}, nil)
	defer h.close()
	held := func() int64 { return h.store.(*memory.Store).Held() }
	s, err := h.New(newRequest(), caller.Principal{}, false, []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`))
	if err != nil {
		t.Fatal(err)
	}
	id := s.ID()
	h.endAs(s, sessionEnded, errors.New("it was lost"))
	if err := keys.Note(t.Context(), s.key, time.Now(), []byte(`{"s":[{"uri":"x:a"}]}`)); err != nil {
		t.Fatal(err)
	}
	if s, err = h.Revive(t.Context(), id, caller.Principal{}, newRequest(), ""); err != nil {
		t.Fatal(err)
	}
	if got, want := held(), sessionCost+subscriptionSize("x:a"); got != want {
		t.Errorf("%d bytes are held, want %d", got, want)
	}
	m := mcptest.Parse(`{"jsonrpc":"2.0","id":1,"method":"resources/unsubscribe","params":{"uri":"x:a"}}`)
	if _, err := s.Begin([]jsonrpc.Message{m}, true); err != nil {
		t.Fatal(err)
	}
	if got := held(); got != sessionCost {
		t.Errorf("%d bytes are held after the end of the subscription, want %d", got, sessionCost)
	}
}

// A session may be taken over before its node has stored any note. It is then as its id describes it, and gives no number a second time, as
// the streams of calls in flight have theirs.
func TestReviveTakenOver(t *testing.T) {
	t.Parallel()
	h := newHouse(t, Options{}, nil)
	defer h.close()
	const life = 5000
	begins := &beginning{params: []byte(`{"protocolVersion":"2025-11-25","capabilities":{}}`), revision: "2025-11-25", life: life}
	for _, test := range []struct{ last, want uint64 }{
		{0, (life-1)<<32 + 1},                // the session begins
		{(life-1)<<32 + 7, (life-1)<<32 + 8}, // a call of its own life
		{life << 32, life<<32 + 1},           // the epoch of its next owner
	} {
		s := h.session("secret", caller.Principal{}, "", kind{})
		s.streams.Resume(test.last)
		begins.apply(s)
		if got := s.streams.Add(nil); got != test.want {
			t.Errorf("after %d the next number is %d, want %d", test.last, got, test.want)
		}
	}
}
