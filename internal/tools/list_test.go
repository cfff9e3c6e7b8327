package tools

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/jsonrpc"
)

// A desk is a server that answers when the test lets it.
type desk struct {
	answers chan string // results of tools/list; closed: the server has ended
	asked   int
	news    int
}

func (d *desk) Name() string   { return "session" }
func (d *desk) Server() string { return "server" }

func (d *desk) Asks(context.Context, *jsonrpc.Message, http.Header) (Ask, func(bool)) {
	ask := func(ctx context.Context, _ []byte) (m jsonrpc.Message, err error) {
		d.asked++
		select {
		case result, ok := <-d.answers:
			if !ok {
				return m, errors.New("the server has ended")
			}
			m.Result = []byte(result)
			return m, nil
		case <-ctx.Done():
			return m, ctx.Err()
		}
	}
	return ask, func(news bool) {
		if news {
			d.news++
		}
	}
}

// newList returns the list of a server, the desk. The operator says that the tool "told" may be called again.
func newList() (*List, *desk) {
	l, d := new(List), &desk{answers: make(chan string)}
	l.Init(d, &Rules{Own: ours{}, Logger: slog.New(slog.DiscardHandler), Operator: func(_, tool string) bool { return tool == "told" }})
	return l, d
}

// calls returns a tools/call request.
func calls(tool string) *jsonrpc.Message {
	return &jsonrpc.Message{Kind: jsonrpc.Request, Method: "tools/call", Params: []byte(`{"name":"` + tool + `","arguments":{"a":"1"}}`)}
}

const readsAndWrites = `{"tools":[{"name":"reads","annotations":{"readOnlyHint":true}},{"name":"sets","annotations":{"idempotentHint":true}},
	{"name":"writes"},{"name":"headed","inputSchema":{"type":"object","properties":{"a":{"type":"string","x-mcp-header":"A"}}}}]}`

// Calls wait once for a server that is slow to list its tools, however many calls need to know whether they may run again.
func TestWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := newList()
		waits := func(what string, want time.Duration, ask func()) {
			t.Helper()
			began := time.Now()
			if ask(); time.Since(began) != want {
				t.Errorf("%s waits for %v, want %v", what, time.Since(began), want)
			}
		}
		repeatable := func(tool string, want bool) func() {
			return func() {
				if got := l.Light(t.Context(), calls(tool), nil); got != want {
					t.Errorf("%s may be called again: %v", tool, got)
				}
			}
		}
		check := func() {
			if err := l.CheckHeaders(t.Context(), calls("headed"), http.Header{}); err != nil {
				t.Error(err)
			}
		}
		waits("what the operator knows", 0, repeatable("told", true))
		waits("a tool of ours", 0, repeatable("own", true))
		waits("a first call", Patience, repeatable("reads", false))
		waits("a second call", 0, repeatable("reads", false))
		waits("a call with headers", longPatience, check)
		waits("its tool", 0, repeatable("headed", false))
		d.answers <- readsAndWrites
		synctest.Wait()
		waits("a tool that reads", 0, repeatable("reads", true))
		waits("a tool that writes", 0, repeatable("writes", false))
		if err := l.CheckHeaders(t.Context(), calls("headed"), http.Header{}); err == nil {
			t.Error("a call without its header is taken")
		}
		if d.asked != 1 || d.news != 1 || l.IsReading() || !l.IsComplete() {
			t.Errorf("asked %d times, news %d", d.asked, d.news)
		}
		if got := l.Names(); !slices.Equal(got, []string{"reads", "sets"}) {
			t.Errorf("%v may be called again", got)
		}
	})
}

// The list of a server that has ended is requested again, that of a silent server is not. A list that has changed while it was read is not kept.
func TestReadsAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l, d := newList()
		close(d.answers)
		if l.Repeatable(t.Context(), calls("reads"), nil) || l.IsComplete() {
			t.Error("a list is known that was not read")
		}
		d.answers = make(chan string)
		go l.Repeatable(t.Context(), calls("reads"), nil)
		synctest.Wait()
		l.Forget()
		d.answers <- readsAndWrites
		synctest.Wait()
		if l.IsComplete() || len(l.Names()) > 0 {
			t.Error("a list that has changed is kept")
		}
		l.awaitAll(t.Context(), nil, nil, time.Minute)
		if !l.IsComplete() || d.asked != 3 {
			t.Errorf("asked %d times, complete %v", d.asked, l.IsComplete())
		}
	})
}

// A list in an answer to a client is learned only if its version is still current.
func TestLearn(t *testing.T) {
	t.Parallel()
	l, _ := newList()
	version := l.Version()
	if l.Learn([]byte(readsAndWrites), version, false) || l.IsComplete() {
		t.Error("a part of the list is taken for all of it")
	}
	l.Forget()
	if l.Learn([]byte(readsAndWrites), version, true) || len(l.Names()) > 0 {
		t.Error("an old list is learned")
	}
	if !l.Learn([]byte(readsAndWrites), l.Version(), true) || !l.IsComplete() || l.Clashes() || l.Nests() {
		t.Error("the whole list is not learned")
	}
	for name, want := range map[string][2]bool{"reads": {true, true}, "sets": {true, false}, "writes": {false, false}, "other": {false, false}} {
		if repeatable, readOnly := l.SaysRepeatable([]byte(name)), l.OnlyReads([]byte(name)); repeatable != want[0] || readOnly != want[1] {
			t.Errorf("%s: may be called again %v, only reads %v", name, repeatable, readOnly)
		}
	}
	l.Learn([]byte(`{"tools":[{"name":"a_own"},{"name":"own","outputSchema":{}}]}`), l.Version(), false)
	if shaped, ok := l.IsShaped("own"); !shaped || ok || !l.Clashes() || !l.Nests() || l.rules.Owns("a_own") {
		t.Error("a tool of the name of ours is not seen")
	}
	if l.Repeatable(t.Context(), calls("own"), nil) {
		t.Error("the server's tool of the name of ours may be called again")
	}
}
