package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// Failure 10: Bob knows all ids and tokens of Alice, and presents them to other nodes than the
// owner of her session, before and after the owner was killed. Each time Bob gets an error as
// for an unknown id, and nothing of Alice's call.
func TestClusterStrangers(t *testing.T) {
	t.Parallel()
	eachEngine(t, false, func(t *testing.T, e *sharedEngine) {
		f := newFleet(t, e, shape{library: true})
		a, b, c := f.nodes[0], f.nodes[1], f.nodes[2]
		alice := mcptest.Must(newSpecClient(bounded(t, time.Minute), fixed(a.url()), "alice"))(t)
		t.Cleanup(alice.close)
		q := request{tool: "work", key: `"hers"`, args: workArgs{ID: callID(t), Steps: 4, MS: 100}}
		hers := alice.call(bounded(t, time.Minute), q)
		if err := hers.check(q); err != nil || hers.link == "" {
			t.Fatalf("Alice: %v, Link %q, received %q", err, hers.link, hers.received)
		}
		link, _, _ := strings.Cut(strings.TrimPrefix(hers.link, "<"), ">")
		token := f.token(alice, q)
		for _, n := range []*node{b, c} {
			f.intrude(n, alice.session, hers.lastID, link, token, q)
		}
		a.kill()
		for _, n := range []*node{b, c} {
			f.intrude(n, alice.session, hers.lastID, link, token, q)
		}
		alice.at = fixed(c.url())
		f.whole(q, alice.ask(bounded(t, time.Minute), 1, q, ""))
	})
}

// token makes a call as a client that resumes requests (SEP-975), and returns the call's resume
// token.
func (f *fleet) token(r *specClient, q request) string {
	f.t.Helper()
	other := &specClient{at: r.at, user: r.user, http: r.http}
	init := mcptest.Initialize("2025-11-25", `{"resumableRequests":{}}`)
	other.session = other.exchange(f.t, "POST", init).Session()
	q.args.ID += "-token"
	events := other.now().Stream(f.t, "POST", q.body(5))
	return jsonrpc.String(jsonrpc.Field(events.Until(f.t, `"resumeToken":"`).Data, "params", "resumeToken"))
}

// intrude has Bob try all ids and tokens of Alice at a node.
func (f *fleet) intrude(n *node, session, eventID, link, token string, q request) {
	t := f.t
	t.Helper()
	bob := mcptest.Must(newSpecClient(bounded(t, time.Minute), fixed(n.url()), "bob"))(t)
	defer bob.close()
	as := func(session, url string) *specClient {
		return &specClient{at: fixed(url), user: "bob", session: session, http: bob.http}
	}
	resume := fmt.Sprintf(`{"jsonrpc":"2.0","id":5,"method":"requests/resume","params":{"resumeToken":%q}}`, token)
	asked := fmt.Sprintf(`{"jsonrpc":"2.0","id":6,"method":"requests/getStatus","params":{"requestId":5,"resumeToken":%q}}`, token)
	for _, try := range []struct {
		what   string
		who    *specClient
		method string
		lastID string
		body   string
		status int
	}{
		{"her session", as(session, n.url()), "GET", "", "", 404},
		{"her session, and event", as(session, n.url()), "GET", eventID, "", 404},
		{"her session, with a request", as(session, n.url()), "POST", "", `{"jsonrpc":"2.0","id":1,"method":"tools/list"}`, 404},
		{"her session, with an answer", as(session, n.url()), "POST", "", `{"jsonrpc":"2.0","id":1,"result":{}}`, 404},
		{"her session, to end it", as(session, n.url()), "DELETE", "", "", 404},
		{"her stream", as("", n.url()+link), "GET", "", "", 404},
		{"her stream, in his session", as(bob.session, n.url()+link), "GET", "", "", 404},
		{"her event, in his session", bob, "GET", eventID, "", 400},
		{"her token", bob, "POST", "", resume, 200},
		{"her token, for its status", bob, "POST", "", asked, 200},
	} {
		r := try.who.exchange(t, try.method, try.body, "Last-Event-ID", try.lastID)
		if r.Status != try.status || try.status == http.StatusOK && !strings.Contains(r.Body, `"code":-32602`) {
			t.Errorf("Bob at %s with %s: %d: %s", n.name, try.what, r.Status, r.Body)
		}
		if strings.Contains(r.Body, q.args.ID) {
			t.Errorf("Bob at %s with %s was told of Alice: %s", n.name, try.what, r.Body)
		}
	}
	// Bob's keys are apart from Alice's: her key begins a new call of his.
	own := q
	own.args.ID += "-bob"
	f.whole(own, bob.call(bounded(t, time.Minute), own))
}
