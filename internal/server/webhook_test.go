package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"holdfast/backend/message"
	unheard "holdfast/internal/feature/webhook"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	webhooksender "holdfast/internal/webhook"
	"holdfast/jsonrpc"
	"holdfast/webhook"
)

const webhookSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"

// hooks is a receiver of webhooks with valid signatures. It records each as "requestId status".
type hooks struct {
	t   testing.TB
	url string
	got chan string
}

// newHooked returns a node that sends webhooks, and their receiver.
func newHooked(t testing.TB, c config) (*node, *hooks) {
	t.Helper()
	k := &hooks{t: t, got: make(chan string, 1000)}
	library := mcptest.Must(standardwebhooks.NewWebhook(webhookSecret))(t)
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = library.Verify(body, r.Header)
		}
		var event struct {
			Data struct {
				RequestID json.RawMessage `json:"requestId"`
				Status    string          `json:"status"`
			} `json:"data"`
		}
		if err == nil {
			err = json.Unmarshal(body, &event)
		}
		if err != nil {
			t.Error(err)
		}
		k.got <- fmt.Sprintf("%s %s", event.Data.RequestID, event.Data.Status)
	}))
	t.Cleanup(receiver.Close)
	k.url = receiver.URL
	secret := mcptest.Must(webhook.ParseSecret(webhookSecret))(t)
	loopback := mcptest.Must(webhook.ParseAllowed("127.0.0.1"))(t)
	sender := webhooksender.New(webhook.Options{Secret: secret, Allow: []webhook.Allowed{loopback}, Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		ctx, stop := context.WithTimeout(context.Background(), time.Minute)
		defer stop()
		if err := sender.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	c.session.OnEnded = func(e unheard.Ended) bool {
		return sender.Send(webhooksender.Event{URL: e.Webhook, RequestID: e.ID, Failed: e.Failed, Time: e.Time})
	}
	return newNode(t, c), k
}

// call returns a tool call that names the receiver.
func (k *hooks) call(id, tool, arguments string) string {
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"method":"tools/call","params":{"name":%q,"arguments":%s,"_meta":{"progressToken":1,"holdfast/webhook":{"url":%q}}}}`,
		id, tool, arguments, k.url+"/hook")
}

// want waits for one webhook.
func (k *hooks) want(want string) {
	k.t.Helper()
	select {
	case got := <-k.got:
		if got != want {
			k.t.Errorf("got the webhook %q, want %q", got, want)
		}
	case <-time.After(time.Minute):
		k.t.Fatalf("no webhook %q", want)
	}
}

// none checks that no webhook has come, except that of a call which it makes now.
func (k *hooks) none(n *node, p *peer, id string) {
	k.t.Helper()
	w := p.open("POST", "/mcp", k.call(id, "hold", `{}`))
	w.head()
	w.c.Close()
	held := n.release(1)
	mcptest.Eventually(k.t, "the reader to be gone", time.Minute, func() bool { return n.sessions.Readers() == 0 })
	held[0].Result(result(""))
	k.want(id + " completed")
	select {
	case got := <-k.got:
		k.t.Errorf("got the webhook %q, want none", got)
	default:
	}
}

// The webhook of a client that has left is sent at the call's end, for each way to leave and to end.
func TestWebhook(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{server: server.Options{UpgradeAfter: 10 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	for _, c := range []struct {
		name string
		end  func(*message.Exchange)
		want string
	}{
		{"result", func(x *message.Exchange) { x.Result(result("done")) }, "completed"},
		{"failed tool", func(x *message.Exchange) { x.Result([]byte(`{"content":[],"isError":true}`)) }, "completed"},
		{"error", func(x *message.Exchange) { x.Error(jsonrpc.Errorf(jsonrpc.CodeInternal, "no")) }, "failed"},
	} {
		for _, how := range []cut{fin, rst} {
			id := fmt.Sprintf(`"%s by %s"`, c.name, how)
			w := p.open("POST", "/mcp", k.call(id, "hold", `{}`))
			w.head()
			held := n.release(1)
			if how == rst {
				_ = w.c.SetLinger(0)
			}
			w.c.Close()
			mcptest.Eventually(t, "the reader to be gone", time.Minute, func() bool { return n.sessions.Readers() == 0 })
			c.end(held[0])
			k.want(id + " " + c.want)
		}
	}
	k.none(n, p, `"last"`)
}

// No webhook is sent if the client gets the response: on the connection of the call, on one on
// which it resumed the call, or of a light call.
func TestWebhookConnected(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{server: server.Options{UpgradeAfter: time.Second}})
	p := n.connect("2025-11-25", nil)

	w := p.open("POST", "/mcp", k.call("1", "steps", `{"n":3}`))
	if r := w.all(); !r.whole {
		t.Error("the stream was cut")
	}

	w = p.open("POST", "/mcp", k.call("2", "hold", `{}`))
	first, err := w.next()
	if err != nil {
		t.Fatal(err)
	}
	w.c.Close()
	held := n.release(1)
	w = p.open("GET", "/mcp", "", "Last-Event-ID: "+first.ID)
	w.head()
	held[0].Result(result("done"))
	w.all()

	p.post(`{"jsonrpc":"2.0","id":0,"method":"tools/list"}`) // from now on echo is known to be read-only
	if r := p.post(k.call("3", "echo", `{"text":"x"}`)); r.header.Get("Content-Type") != "application/json" {
		t.Errorf("the answer is %s", r.header.Get("Content-Type"))
	}

	// A light call that is promoted.
	w = p.open("POST", "/mcp", k.call("4", "safe_steps", `{"n":1,"pause":1500}`))
	w.all()

	k.none(n, p, `"last"`)
}

// A client that was disconnected, to come back later, counts as away: the webhook is sent.
func TestWebhookPolling(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{server: server.Options{DisconnectAfter: 20 * time.Millisecond}})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", k.call("1", "hold", `{}`))
	w.all()
	held := n.release(1)
	held[0].Result(result("done"))
	k.want("1 completed")
}

// A client that does not read counts as away after WriteTimeout: the webhook is sent.
func TestWebhookStuck(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{
		server: server.Options{WriteTimeout: time.Second},
		http: func(s *http.Server) {
			s.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
				// The system buffers as little as possible.
				if tcp, ok := c.(interface{ SetWriteBuffer(int) error }); ok {
					_ = tcp.SetWriteBuffer(4 << 10)
				} else {
					t.Errorf("%T has no buffer", c)
				}
				return ctx
			}
		},
	})
	p := n.connect("2025-11-25", nil)
	w := p.open("POST", "/mcp", k.call("1", "steps", `{"n":50,"size":20000}`))
	_ = w.c.SetReadBuffer(4 << 10)
	k.want("1 completed")
	w.c.Close()
}

// The webhook of a light call is sent if the client leaves before the answer.
func TestWebhookLight(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{server: server.Options{Response: server.ResponseJSON}})
	p := n.able("2025-11-25", "")
	w := p.open("POST", "/mcp", k.call("1", "hold", `{}`))
	held := n.release(1)
	w.c.Close()
	mcptest.Eventually(t, "the call to become a stream", time.Minute, func() bool {
		r := p.post(`{"jsonrpc":"2.0","id":2,"method":"requests/getStatus/all"}`)
		return strings.Contains(string(r.body), `"requestId":1,`)
	})
	held[0].Result(result("done"))
	k.want("1 completed")
}

// The webhook of a call says "failed" if the session ends first.
func TestWebhookSessionEnds(t *testing.T) {
	t.Parallel()
	n, k := newHooked(t, config{})
	p := n.connect("2025-06-18", nil)
	w := p.open("POST", "/mcp", k.call("1", "hold", `{}`))
	w.head()
	n.release(1)
	w.c.Close()
	mcptest.Eventually(t, "the reader to be gone", time.Minute, func() bool { return n.sessions.Readers() == 0 })
	p.open("DELETE", "/mcp", "").all()
	k.want("1 failed")
}

// Without webhooks, a request that names one is like any other.
func TestWebhookOff(t *testing.T) {
	t.Parallel()
	n := newNode(t, config{})
	p := n.connect("2025-11-25", nil)
	k := &hooks{url: "https://" + netip.IPv6Unspecified().String()}
	if r := p.post(k.call("1", "steps", `{"n":1}`)); !r.whole || r.status != http.StatusOK {
		t.Errorf("got %d %s", r.status, r.body)
	}
}
