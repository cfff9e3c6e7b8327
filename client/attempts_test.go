package client

import (
	"context"
	"net/url"
	"slices"
	"testing"
	"time"
)

// A fixed transport can make some kinds of attempt.
type fixed []attemptKind

func (f fixed) ready(*call) error                         { return nil }
func (f fixed) can(_ *call, kind attemptKind) bool        { return slices.Contains(f, kind) }
func (f fixed) attempt(*call, attemptKind) (bool, error)  { return false, nil }
func (f fixed) pong(context.Context, *call, []byte) error { return nil }
func (f fixed) shared() bool                              { return false }
func (f fixed) send(context.Context, *call, []byte, time.Duration) error {
	return nil
}

// The client takes the best way back that the call has, the server has not refused, and the transport
// can use. A request that may have run is sent again only under a key, or if it is retry-safe.
func TestChoose(t *testing.T) {
	t.Parallel()
	all := fixed{attemptAnswers, attemptStream, attemptEvents, attemptToken, attemptRequest, attemptAgain}
	way := func(k *call) {
		k.ways = ways{stream: &url.URL{}, token: "t", received: position{last: "1"}}
	}
	refuse := func(kinds ...attemptKind) func(*call) {
		return func(k *call) {
			for _, kind := range kinds {
				k.ways.refuse(kind)
			}
		}
	}
	for _, test := range []struct {
		name   string
		state  callState
		method string
		can    fixed
		set    []func(*call)
		want   attemptKind
	}{
		{"not sent", callUnsent, "tools/call", all, nil, attemptRequest},
		{"sent", callSent, "tools/call", all, nil, attemptNone},
		{"taken", callTaken, "tools/call", all, nil, attemptNone},
		{"retry-safe", callSent, "tools/list", all, nil, attemptAgain},
		{"retry-safe, refused", callSent, "tools/list", all, []func(*call){refuse(attemptAgain)}, attemptNone},
		{"a subscription", callSent, "subscriptions/listen", all, nil, attemptNone},
		{"a vendor's method", callSent, "vendor/charge", all, nil, attemptNone},
		{"a key", callSent, "tools/call", all, []func(*call){func(k *call) { k.key = "k" }}, attemptAgain},
		{"without its body", callSent, "tools/list", all, []func(*call){func(k *call) { k.body = nil }}, attemptNone},
		{"replies", callTaken, "tools/call", all, []func(*call){way, func(k *call) { k.turns.batch = []byte("[]") }}, attemptAnswers},
		{"every way", callTaken, "tools/call", all, []func(*call){way}, attemptStream},
		{"no stream URL", callTaken, "tools/call", all, []func(*call){way, refuse(attemptStream)}, attemptEvents},
		{"replies refused", callTaken, "tools/call", all, []func(*call){way, refuse(attemptAnswers)}, attemptEvents},
		{"a token only", callTaken, "tools/call", all, []func(*call){way, refuse(attemptStream, attemptEvents)}, attemptToken},
		{"no way", callTaken, "tools/call", all, []func(*call){way, refuse(attemptStream, attemptEvents, attemptToken)}, attemptNone},
		{"a mux", callTaken, "tools/call", fixed{attemptToken, attemptRequest}, []func(*call){way}, attemptToken},
		{"a mux that continues", callTaken, "tools/call", fixed{attemptWait, attemptToken}, []func(*call){way}, attemptWait},
		{"a mux, maybe sent", callSent, "tools/call", fixed{attemptWait, attemptToken}, nil, attemptNone},
	} {
		k := &call{request: request{method: test.method, body: []byte(`{}`)}, state: test.state, attempts: attempts{transport: test.can}}
		for _, set := range test.set {
			set(k)
		}
		if got := k.choose(); got != test.want {
			t.Errorf("%s: got %d, want %d", test.name, got, test.want)
		}
	}
}

// Another process continues after the last event that was processed.
func TestPosition(t *testing.T) {
	t.Parallel()
	var p position
	p.advance("1")
	p.settle()
	if p.last != "1" || p.behind {
		t.Errorf("settled: %+v", p)
	}
	p.advance("2")
	p.advance("3")
	if p.last != "3" || !p.behind || p.before != "1" {
		t.Errorf("behind: %+v", p)
	}
	p.settle()
	if p.last != "3" || p.behind {
		t.Errorf("settled again: %+v", p)
	}
}
