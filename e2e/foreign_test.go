package e2e

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
	"holdfast/internal/testport"
)

// A foreign is a running server that is not Holdfast's.
type foreign struct {
	url  string
	echo mcp.CallToolParams // a call that is answered with "hello"
	// long is a call that takes a second or two, and reports progress from 1 to steps.
	long  mcp.CallToolParams
	steps int
	said  string // the answer of long
	loose bool   // the server loses, reorders or misplaces progress by itself

	// These are set if the server is in this process.
	work    *fleet // it knows how often calls have run
	server  *mcp.Server
	handler atomic.Pointer[mcp.StreamableHTTPHandler]
	cut     func() // ends all connections
}

func call(name string, args map[string]any) mcp.CallToolParams {
	return mcp.CallToolParams{Name: name, Arguments: args}
}

// official serves a workServer with the go-sdk's handler, in this process.
func official(t *testing.T, opts *mcp.StreamableHTTPOptions) *foreign {
	t.Helper()
	const steps = 20
	traces := t.TempDir()
	f := &foreign{
		echo:   call("work", map[string]any{"id": "hello", "steps": 0, "ms": 0}),
		long:   call("work", map[string]any{"id": "long", "steps": steps, "ms": 100 * steps}),
		steps:  steps,
		said:   "did long",
		work:   &fleet{t: t, traces: traces},
		server: workServer(traces),
	}
	f.restart(opts)
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.handler.Load().ServeHTTP(w, r)
	}))
	t.Cleanup(front.Close)
	f.url, f.cut = front.URL, front.CloseClientConnections
	return f
}

// kept returns options with an event store.
func kept() *mcp.StreamableHTTPOptions {
	return &mcp.StreamableHTTPOptions{EventStore: mcp.NewMemoryEventStore(nil)}
}

// restart makes the server forget its sessions, and closes all connections.
func (f *foreign) restart(opts *mcp.StreamableHTTPOptions) {
	f.handler.Store(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return f.server }, opts))
	if f.cut != nil {
		f.cut()
	}
}

// everythingOver runs server-everything as a process, over one of its transports:
// streamableHttp or sse.
func everythingOver(t *testing.T, transport, path string) *foreign {
	t.Helper()
	dir := npm(t, everything)
	f := &foreign{
		echo:  call("echo", map[string]any{"message": "hello"}),
		long:  call(long.Name, long.Arguments),
		steps: steps,
		said:  longText,
		// A client that resumes one stream gets the rest of all other streams too, and may get
		// the end of a call there first.
		loose: true,
	}
	listening := regexp.MustCompile(`on port (\d+)$`)
	// The server does not accept port 0. Another process may take the port that was free just now.
	for try := 0; ; try++ {
		addr := testport.Addr(t)
		_, port, _ := net.SplitHostPort(addr)
		cmd := exec.Command("node", filepath.Join(dir, everything), transport)
		cmd.Env = append(os.Environ(), "PORT="+port)
		if found := mcptest.Start(t, cmd).Find(listening); found != nil {
			f.url = "http://" + addr + path
			return f
		}
		if try == 3 {
			t.Fatal("server-everything does not start")
		}
	}
}

// buildPeers builds the benchmarks' peers, which are a separate module, and returns the
// program.
var buildPeers = sync.OnceValues(func() (string, error) {
	program := filepath.Join(filepath.Dir(built), "peers")
	cmd := exec.Command("go", "build", "-o", program, "./server")
	cmd.Dir = filepath.Join("..", "bench", "peers")
	if !testlong.Wanted() {
		cmd.Env = append(os.Environ(), "GOPROXY=off") // without -long, go test downloads no modules for this
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build in bench/peers: %w\n%s", err, out)
	}
	return program, nil
})

// mcpgo runs a server made with mcp-go.
func mcpgo(t *testing.T, path string) *foreign {
	t.Helper()
	testlong.Only(t, "it builds a module of its own")
	program := mcptest.Must(buildPeers())(t)
	cmd := exec.Command(program, "-listen", "127.0.0.1:0", "-kind", "mcp-go")
	found := mcptest.Start(t, cmd).Find(regexp.MustCompile(`url=(http://\S+)/`))
	if found == nil {
		t.Fatal("the mcp-go server does not start")
	}
	// The server pauses after each 50 steps.
	const steps = 200
	return &foreign{
		url:   found[1] + path,
		echo:  call("echo", map[string]any{"text": "hello"}),
		long:  call("progress", map[string]any{"n": steps, "size": 10, "pause_ms": 400}),
		steps: steps,
		said:  fmt.Sprintf("done %d", steps),
		loose: true,
	}
}
