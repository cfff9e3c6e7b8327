package bridge

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/internal/mcptest"
	"holdfast/internal/testlong"
)

// A house is an address with or without a server.
type house struct {
	t    *testing.T
	addr string
	end  func()
}

func newHouse(t *testing.T) *house {
	t.Helper()
	l := mcptest.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	return &house{t: t, addr: l.Addr().String()}
}

func (h *house) url() string { return "http://" + h.addr + "/mcp" }

// opens starts a server with some tools. The server knows no earlier session.
func (h *house) opens(tools ...string) {
	h.t.Helper()
	server := mcp.NewServer(&mcp.Implementation{Name: "house", Version: "1"}, nil)
	for _, name := range tools {
		mcp.AddTool(server, &mcp.Tool{Name: name}, func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "ran " + name}}}, nil, nil
		})
	}
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return server }, &holdfast.Options{Retry: 10 * time.Millisecond, Eras: holdfast.ErasBoth})
	var l net.Listener
	for end := time.Now().Add(soon); l == nil; {
		var err error
		if l, err = net.Listen("tcp", h.addr); err != nil && time.Now().After(end) {
			h.t.Fatal(err)
		}
	}
	s := &http.Server{Handler: handler}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.Serve(l)
	}()
	h.end = func() {
		ctx, stop := context.WithCancel(context.Background())
		stop()
		_ = handler.Shutdown(ctx)
		_ = s.Close()
		<-served
	}
}

// visit has a host initialize, list its tools, and leave.
func (h *house) visit(state string) {
	h.t.Helper()
	h.opens("old")
	c := newHost(h.t, h.url(), state)
	c.open()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	c.read(`"id":1,`)
	c.leave()
	h.end()
}

// If the server is away when a host starts, the bridge answers from the server's last answers. Other requests wait. When the
// server is back, the host is told once to list again.
func TestServerAwayAtStart(t *testing.T) {
	testlong.Only(t, "a server has some seconds to answer")
	t.Parallel()
	for name, kept := range map[string]bool{"its session is kept": true, "its session is not kept": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			state, h := t.TempDir(), newHouse(t)
			h.visit(state)
			files, err := filepath.Glob(filepath.Join(state, "connect", "*"+knownSuffix))
			if err != nil || len(files) != 1 {
				t.Fatalf("files %q, %v", files, err)
			}
			if info, err := os.Stat(files[0]); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", info.Mode(), err)
			}
			if !kept {
				for _, name := range sessionFiles(t, state) {
					mcptest.Check(t, os.Remove(name))
				}
			}
			c := newHost(t, h.url(), state)
			c.open()
			c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
			if line := c.read(`"id":1,`); !strings.Contains(line, `"name":"old"`) {
				t.Errorf("while the server is away: %s", line)
			}
			c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"new","arguments":{}}}`)
			c.send(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"new","arguments":{}}}`)
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":3}}`)
			c.send(`{"jsonrpc":"2.0","id":4,"method":"ping"}`)
			c.read(`"id":4,`)
			h.opens("new")
			defer h.end()
			told, answered := 0, false
			for told == 0 || !answered {
				line := c.read(`"jsonrpc"`)
				switch {
				case strings.Contains(line, "notifications/tools/list_changed"):
					told++
				case strings.Contains(line, `"id":2,`):
					answered = strings.Contains(line, "ran new")
				case strings.Contains(line, `"id":3,`):
					t.Errorf("a call that was cancelled: %s", line)
				}
			}
			c.send(`{"jsonrpc":"2.0","id":5,"method":"tools/list"}`)
			for {
				line := c.read(`"jsonrpc"`)
				if strings.Contains(line, "notifications/tools/list_changed") {
					told++
				}
				if strings.Contains(line, `"id":5,`) {
					if !strings.Contains(line, `"name":"new"`) {
						t.Errorf("when the server is back: %s", line)
					}
					break
				}
			}
			if told != 1 {
				t.Errorf("told %d times to list again", told)
			}
			c.leave()
		})
	}
}

// The known answers of a server belong to one login, and are bounded.
func TestKnown(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "a"+knownSuffix)
	ada, ben := time.Unix(1, 0), time.Unix(2, 0)
	k := &known{name: name}
	key := keyOf("tools/list", []byte(`{"cursor":"1"}`))
	if key == "" || key == keyOf("tools/list", nil) || keyOf("tools/call", nil) != "" {
		t.Errorf("keys %q, %q", key, keyOf("tools/call", nil))
	}
	k.keep(key, ada, []byte(`{"tools":[]}`))
	again := &known{name: name}
	if got := again.answer(key, ada); string(got) != `{"tools":[]}` {
		t.Errorf("read %s", got)
	}
	if got := again.answer(key, ben); got != nil {
		t.Errorf("another login reads %s", got)
	}
	const last = mostKnown + 2 // each answer is written to a disk
	for i := range last + 1 {
		k.keep(fmt.Sprint(i), ada, []byte(`"x"`))
	}
	if k.answer(key, ada) != nil || k.answer("2", ada) != nil || k.answer("3", ada) == nil || k.answer(fmt.Sprint(last), ada) == nil {
		t.Error("not the newest answers are kept")
	}
	k.keep("large", ada, make([]byte, mostKnownBytes+1))
	for i := range 6 { // three of them are less than the bound in bytes
		k.keep(fmt.Sprint("quarter", i), ada, []byte(`"`+strings.Repeat("x", mostKnownBytes/4)+`"`))
	}
	if info, err := os.Stat(name); err != nil || info.Size() > mostKnownBytes+(16<<10) {
		t.Errorf("%d bytes are kept, %v", info.Size(), err)
	}
	if k.answer(fmt.Sprint(last), ada) != nil || k.answer("large", ada) != nil || k.answer("quarter2", ada) != nil || k.answer("quarter3", ada) == nil {
		t.Error("not the newest bytes are kept")
	}
	mcptest.Check(t, os.WriteFile(name, []byte(`{"answers":`), 0o600))
	if got := (&known{name: name}).answer(key, ada); got != nil {
		t.Errorf("half a file has %s", got)
	}
}
