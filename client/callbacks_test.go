package client_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
	"holdfast/client"
	"holdfast/internal/mcptest"
)

// A trap is a user's code that panics at the place in at.
type trap struct{ at atomic.Pointer[string] }

func (p *trap) set(at string) { p.at.Store(&at) }

func (p *trap) here(at string) {
	if *p.at.Load() == at {
		panic("hunter2")
	}
}

// Authorization implements [client.Authorizer].
func (p *trap) Authorization(context.Context) (string, error) {
	p.here("Authorization")
	if *p.at.Load() == "Authorize" {
		return "Bearer none", nil
	}
	return "Bearer it", nil
}

// Authorize implements [client.Authorizer].
func (p *trap) Authorize(context.Context, *http.Request, *http.Response) error {
	p.here("Authorize")
	return nil
}

// RoundTrip implements [http.RoundTripper].
func (p *trap) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost && !strings.Contains(r.Header.Get("Upgrade"), "websocket") {
		return http.DefaultTransport.RoundTrip(r)
	}
	p.here("before")
	res, err := http.DefaultTransport.RoundTrip(r)
	if err == nil && *p.at.Load() == "after" {
		res.Body.Close()
	}
	p.here("after")
	if err == nil && res.StatusCode == http.StatusOK {
		res.Body = trapBody{p, res.Body}
	}
	return res, err
}

type trapBody struct {
	*trap
	io.ReadCloser
}

func (b trapBody) Read(p []byte) (int, error) {
	b.here("read")
	return b.ReadCloser.Read(p)
}

func (b trapBody) Close() error {
	err := b.ReadCloser.Close()
	b.here("close")
	return err
}

// When code of the user panics, the call that it works for ends, and the connection continues.
func TestCallbackPanics(t *testing.T) {
	t.Parallel()
	h := holdfastOf(t, newServer(), &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer it" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		h.ServeHTTP(w, r)
	}))
	for at, fails := range map[string]bool{
		"Authorization": true, "Authorize": true, "before": true, "after": true, "read": true, "close": false, "Changed": false,
	} {
		t.Run(at, func(t *testing.T) {
			t.Parallel()
			p := &trap{}
			p.set("")
			s := connect(t, url, &client.Options{
				Auth:       p,
				HTTPClient: &http.Client{Transport: p},
				Changed:    func() { p.here("Changed") },
				NoListen:   true,
				Logger:     slog.New(slog.DiscardHandler),
			}, nil)
			p.set(at)
			_, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: addArgs{1, 2}})
			unknown := at == "before" || at == "after" || at == "read" // the call may have been sent
			var wire *jsonrpc.Error
			switch {
			case !fails && err != nil:
				t.Errorf("got %v", err)
			case fails && (!errors.As(err, &wire) || !strings.Contains(err.Error(), "panicked") || strings.Contains(err.Error(), "hunter2")):
				t.Errorf("got %v", err)
			case fails && (holdfast.OutcomeUnknown(err) != unknown || !unknown && wire.Code != jsonrpc.CodeInternalError):
				t.Errorf("%v: unknown %v", err, holdfast.OutcomeUnknown(err))
			}
			p.set("")
			if res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "add", Arguments: addArgs{1, 2}}); err != nil || res.IsError {
				t.Errorf("afterwards: %+v, %v", res, err)
			}
		})
	}
}

// A panic below a WebSocket's handshake ends the calls that wait for it.
func TestWebSocketPanics(t *testing.T) {
	t.Parallel()
	h := holdfastOf(t, newServer(), &holdfast.Options{Logger: slog.New(slog.DiscardHandler)})
	url := mcptest.Serve(t, h)
	for _, at := range []string{"Authorization", "before"} {
		p := &trap{}
		p.set(at)
		tr := holdfast.NewClientTransport(strings.Replace(url, "http", "ws", 1), &holdfast.ClientOptions{Options: client.Options{
			Auth: p, HTTPClient: &http.Client{Transport: p}, Logger: slog.New(slog.DiscardHandler),
		}})
		if s, err := mcp.NewClient(impl, nil).Connect(t.Context(), tr, nil); err == nil || !strings.Contains(err.Error(), "panicked") {
			t.Errorf("%s: %v, %v", at, s, err)
		}
	}
}
