package torture

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// For TestCommand, TestMain makes the test binary a server, or the parent of one.
func TestMain(m *testing.M) {
	switch {
	case len(os.Args) > 3 && os.Args[1] == "child":
		code, err := Child(os.Args[2], os.Args[3:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	case len(os.Args) > 1 && os.Args[1] == "server":
		_ = steps(new(atomic.Int64)).Run(context.Background(), &mcp.StdioTransport{}) // returns at the end of stdin
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// steps returns a server with one tool, which takes some steps and is not safe to run twice. calls counts the tool's runs.
func steps(calls *atomic.Int64) *mcp.Server {
	server := mcp.NewServer(&mcp.Implementation{Name: "steps", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "steps"}, func(ctx context.Context, r *mcp.CallToolRequest, _ struct{}) (*mcp.CallToolResult, any, error) {
		calls.Add(1)
		for i := range 3 {
			_ = r.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: r.Params.GetProgressToken(), Progress: float64(i)})
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	return server
}

// short returns options for a run of a few seconds with each kind of disturbance twice. On a slow machine, no call
// counts as hung unless it would hang for ever.
func short() Options {
	return Options{
		Choose: func(tools []*mcp.Tool) (string, json.RawMessage, error) {
			if len(tools) != 1 {
				return "", nil, errors.New("the server has not one tool")
			}
			return tools[0].Name, json.RawMessage("{}"), nil
		},
		Calls: 2 * (int(lastKind) + 1), For: time.Hour, Clients: 18, Limit: time.Minute, Seed: 3,
		pace: &pace{hung: 500 * time.Millisecond, silence: 500 * time.Millisecond, keepAlive: 100 * time.Millisecond, retry: 50 * time.Millisecond},
	}
}

// holds checks the result of a run against a server that survives no disturbance by itself.
func holds(t *testing.T, r *Report, calls int) {
	t.Helper()
	var text bytes.Buffer
	if err := r.Write(&text); err != nil {
		t.Fatal(err)
	}
	t.Logf("\n%s", text.String())
	if len(r.Ways) != 3 {
		t.Fatalf("there are %d ways", len(r.Ways))
	}
	bare, both := r.Ways[0], r.Ways[2]
	for _, w := range r.Ways {
		if w.Calls != calls || w.Results+w.Told+w.Lost+w.Hung != calls {
			t.Errorf("%s: %+v of %d calls", w.Way, w.Count, calls)
		}
	}
	if bare.Lost+bare.Hung < 4 || bare.Lost == 0 { // two requests are cut, and two answers before the first byte
		t.Errorf("bare, only %d calls were lost and %d hung", bare.Lost, bare.Hung)
	}
	if both.Lost+both.Twice+both.Hung != 0 || !r.Whole() {
		t.Errorf("with Holdfast at both ends %+v: %v", both.Count, both.Errors)
	}
}

// TestURL tortures the go-sdk's handler.
func TestURL(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	server := steps(&calls)
	to := mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	o := short()
	o.URL = to + "/mcp"
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, r, o.Calls)
}

// TestCommand tortures a command on stdio, and kills its processes.
func TestCommand(t *testing.T) {
	testlong.Only(t, "it starts many processes")
	t.Parallel()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	o := short()
	o.Command, o.Child = []string{self, "server"}, []string{self, "child"}
	r, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	holds(t, r, o.Calls)
	if r.Ways[0].Twice == 0 {
		t.Error("bare, no call ran twice")
	}
	if killed := r.Ways[2].Kinds[killed.String()]; killed == nil || killed.Told+killed.Results != 2 { // a result may come before the signal
		t.Errorf("of two calls whose process was killed became %+v: %v", killed, r.Ways[2].Errors)
	}
}

// Equal seeds have equal plans, and different seeds differ. Each round has all kinds.
func TestPlans(t *testing.T) {
	t.Parallel()
	kinds, differ := make(map[kind]int), false
	for n := range 4 * (int(lastKind) + 1) {
		p := planOf(1, n, true)
		if p != planOf(1, n, true) {
			t.Errorf("call %d has two plans", n)
		}
		differ = differ || p != planOf(2, n, true)
		kinds[p.kind]++
		if planOf(1, n, false).kind == killed {
			t.Errorf("call %d kills a process that is not there", n)
		}
	}
	if !differ {
		t.Error("two seeds have the same plans")
	}
	for k := clean; k <= lastKind; k++ {
		if kinds[k] != 4 {
			t.Errorf("%v comes %d times in four rounds", k, kinds[k])
		}
	}
}

// If a call fails without a cut, Run returns an error instead of a report.
func TestFailsAnyway(t *testing.T) {
	t.Parallel()
	server := mcp.NewServer(&mcp.Implementation{Name: "broken", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "broken"}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("out of order")
	})
	to := mcptest.Serve(t, mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return server }, nil))
	o := short()
	o.URL = to
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "out of order") || !strings.Contains(err.Error(), "--tool") {
		t.Errorf("the error is %v", err)
	}
}

// The counter on the server's side counts a call that comes twice, also in a batch, unless the server refuses it.
func TestCounts(t *testing.T) {
	t.Parallel()
	a := newArrivals()
	to := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Refuse") != "" {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	u, err := http.NewRequestWithContext(t.Context(), http.MethodPost, to, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := counting(u.URL, nil, a)
	one := `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","_meta":{"holdfast/torture":"1-1"}}}`
	for _, body := range []string{one, "[" + one + "]", `{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{"_meta":{"holdfast/torture":"1-1"}}}`} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(body))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	refused := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/", strings.NewReader(one))
	refused.Header.Set("Refuse", "yes")
	h.ServeHTTP(httptest.NewRecorder(), refused)
	if n, _ := a.count("1-1"); n != 2 {
		t.Errorf("the call is counted %d times", n)
	}
}
