package torture

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/redact"
	"holdfast/jsonrpc"
)

// A bridge gives a command on stdio a Streamable HTTP endpoint, as plain bridges do: the go-sdk's transport in front of
// a process for each session, without a store of events.
type bridge struct {
	command []string

	mu       sync.Mutex
	sessions map[string]*mcp.StreamableServerTransport // nil: closed
	ends     map[string]func()
	wait     sync.WaitGroup
}

// ServeHTTP implements [http.Handler].
func (b *bridge) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := r.Header.Get("Mcp-Session-Id")
	if id != "" {
		b.mu.Lock()
		t, end := b.sessions[id], b.ends[id]
		b.mu.Unlock()
		if t == nil {
			http.Error(w, "there is no such session", http.StatusNotFound)
			return
		}
		t.ServeHTTP(w, r)
		if r.Method == http.MethodDelete {
			end()
		}
		return
	}
	body, ok := readBody(w, r)
	if !ok {
		return
	}
	if m, err := jsonrpc.Parse(json.RawMessage(bytes.TrimSpace(body))); err != nil || m.Method != "initialize" {
		http.Error(w, "a session begins with initialize", http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	t, err := b.open()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	t.ServeHTTP(w, r)
}

// open starts a process and a session.
func (b *bridge) open() (*mcp.StreamableServerTransport, error) {
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.Command(b.command[0], b.command[1:]...) //nolint:gosec // the user's
	cmd.Env = redact.Environ(os.Environ())
	ownGroup(cmd)
	down, err := (&mcp.CommandTransport{Command: cmd, TerminateDuration: 2 * time.Second}).Connect(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	t := &mcp.StreamableServerTransport{SessionID: rand.Text()}
	up, err := t.Connect(ctx)
	if err != nil {
		cancel()
		_ = down.Close()
		return nil, err
	}
	end := sync.OnceFunc(func() {
		b.mu.Lock()
		delete(b.sessions, t.SessionID)
		delete(b.ends, t.SessionID)
		b.mu.Unlock()
		cancel()
		_ = up.Close()
		_ = down.Close()
	})
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions == nil {
		go end()
		return nil, http.ErrServerClosed
	}
	b.sessions[t.SessionID], b.ends[t.SessionID] = t, end
	for _, way := range [][2]mcp.Connection{{up, down}, {down, up}} {
		b.wait.Go(func() {
			defer end()
			for {
				m, err := way[0].Read(ctx)
				if err != nil {
					return
				}
				// A message that the client's side does not take, if no client listens for example, is lost; the session
				// goes on.
				if err := way[1].Write(ctx, m); err != nil && way[1] == down {
					return
				}
			}
		})
	}
	return t, nil
}

func (b *bridge) close() {
	b.mu.Lock()
	ends := b.ends
	b.ends = make(map[string]func())
	b.sessions = nil
	b.mu.Unlock()
	for _, end := range ends {
		b.wait.Go(end)
	}
	b.wait.Wait()
}
