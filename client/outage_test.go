package client_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// A fickle server is out of reach for a time.
type fickle struct {
	from, to time.Time
}

func (f *fickle) RoundTrip(r *http.Request) (*http.Response, error) {
	body := ""
	if r.Body != nil {
		all, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		body = string(all)
	}
	if now := time.Now(); !now.Before(f.from) && now.Before(f.to) {
		return nil, errors.New("connection refused")
	}
	m, err := jsonrpc.Parse([]byte(body))
	answer := &http.Response{StatusCode: http.StatusMethodNotAllowed, Header: http.Header{}, Body: http.NoBody, ContentLength: -1, Request: r}
	switch {
	case err != nil: // the request is a GET
	case m.Kind != jsonrpc.Request:
		answer.StatusCode = http.StatusAccepted
	default:
		answer.StatusCode = http.StatusOK
		answer.Header.Set("Content-Type", "application/json")
		result := `{}`
		if m.Method == "initialize" {
			result = `{"protocolVersion":"2025-11-25","capabilities":{},"serverInfo":{"name":"s","version":"1"}}`
		}
		answer.Body = io.NopCloser(strings.NewReader(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":` + result + `}`))
	}
	return answer, nil
}

// TestOutageIsLogged has a server out of reach while calls wait for it. The log has one line when it goes, with the number of waiting calls, and
// one when it is back.
func TestOutageIsLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var log bytes.Buffer
		now := time.Now()
		c, err := client.New("http://user:s3cret@server/mcp", &client.Options{
			HTTPClient: &http.Client{Transport: &fickle{from: now.Add(time.Second), to: now.Add(11 * time.Second)}}, Transport: client.HTTP,
			Logger: slog.New(slog.NewTextHandler(writer(func(p []byte) (int, error) {
				mu.Lock()
				defer mu.Unlock()
				return log.Write(p)
			}), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		send := func(text string) {
			t.Helper()
			m, err := jsonrpc.Parse([]byte(text))
			if err == nil {
				err = c.Send(t.Context(), m)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		answered := func(id string) {
			t.Helper()
			if m, err := c.Receive(t.Context()); err != nil || m.Result == nil || id != "" && string(m.ID) != id {
				t.Errorf("received %s, %v", m.Raw, err)
			}
		}
		send(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}`)
		answered("0")
		send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
		time.Sleep(2 * time.Second)
		for _, id := range []string{"1", "2", "3"} {
			send(`{"jsonrpc":"2.0","id":` + id + `,"method":"tools/list"}`)
		}
		for range 3 {
			answered("")
		}
		time.Sleep(10 * time.Second)
		mu.Lock()
		all := strings.Split(strings.TrimSpace(log.String()), "\n")
		mu.Unlock()
		if len(all) != 2 || !strings.Contains(all[0], `level=WARN msg="the server is out of reach: calls wait for it for up to `) || !strings.Contains(all[0], "url=http://server/mcp calls_waiting=3 ") ||
			!strings.Contains(all[1], `level=INFO msg="the server is reached again" url=http://server/mcp for=`) {
			t.Errorf("the log is\n%s", strings.Join(all, "\n"))
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
}

// A writer is an [io.Writer].
type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
