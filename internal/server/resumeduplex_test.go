package server_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/backend/message"
	"holdfast/backend/sdk"
	"holdfast/internal/mcptest"
	"holdfast/internal/server"
	"holdfast/internal/testlong"
	"holdfast/jsonrpc"
)

// resumes are the capabilities of a client of SEP-975 that wants event ids.
const resumes = `{"resumableRequests":{"eventIds":true}}`

const me = "Authorization: Bearer me"

// A wanderer is a client that makes one call, with the id "c", and resumes it on connections of
// any kind.
type wanderer struct {
	n       *node
	who     string // the principal, as a header
	session string // the session to attach to, if the transport can
	body    string // of the call
	sent    bool
	token   string
	last    string // event id
	seen    map[string]bool
	got     []jsonrpc.Message
	done    bool
}

func newWanderer(n *node, who, body string) *wanderer {
	// The server may read a call after the cut that followed it. The key makes it the same call
	// as the repeated one.
	body = strings.Replace(body, `"_meta":{`, `"_meta":{"holdfast/idempotencyKey":"k",`, 1)
	return &wanderer{n: n, who: "Authorization: Bearer " + who, body: body, seen: map[string]bool{}}
}

// errAgain says that a connection ended before the call did.
var errAgain = errors.New("the connection ended")

// goOn makes or resumes the call on one connection, which is cut after most bytes.
func (w *wanderer) goOn(open dialer, most int) error {
	c, fresh, err := w.connect(open, most)
	if err != nil {
		return err
	}
	defer c.cut(fin)
	if fresh {
		if err := c.initialize("2025-11-25", resumes); err != nil {
			return fmt.Errorf("%w: %w", errAgain, err)
		}
	}
	if w.session = ""; c.id != "" {
		w.session = c.id
	}
	if w.sent && w.token == "" {
		if err := w.look(c); err != nil {
			return err
		}
	}
	switch {
	case !w.sent:
		w.sent = true
		err = c.send(w.body)
	case w.last != "":
		err = c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"c","method":"requests/resume","params":{"resumeToken":%q,"_meta":{"holdfast/lastEventId":%q}}}`, w.token, w.last))
	default:
		err = c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"c","method":"requests/resume","params":{"resumeToken":%q}}`, w.token))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	for !w.done {
		m, err := c.next()
		if err != nil {
			return fmt.Errorf("%w: %w", errAgain, err)
		}
		if err := w.take(m); err != nil {
			return err
		}
	}
	return nil
}

// connect opens a connection, to the existing session if possible.
func (w *wanderer) connect(open dialer, most int) (c *talker, fresh bool, err error) {
	if fmt.Sprintf("%p", open) != fmt.Sprintf("%p", dialer(openSocket)) {
		return open(w.n, most, w.who), true, nil
	}
	if w.session != "" {
		c, res, err := w.n.dialSocket(most, w.who, "Mcp-Session-Id: "+w.session)
		switch {
		case err == nil:
			return c, false, nil
		case res == nil || res.StatusCode != http.StatusNotFound:
			return nil, false, fmt.Errorf("%w: %w", errAgain, err)
		}
		w.session = "" // the session was never initialized
	}
	c, _, err = w.n.dialSocket(most, w.who)
	if err != nil {
		err = fmt.Errorf("%w: %w", errAgain, err)
	}
	return c, true, err
}

// look lists the client's requests to learn whether the server has taken the call.
func (w *wanderer) look(c *talker) error {
	if err := c.send(`{"jsonrpc":"2.0","id":"all","method":"requests/getStatus/all"}`); err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	m, err := c.next()
	if err != nil {
		return fmt.Errorf("%w: %w", errAgain, err)
	}
	var all struct {
		Requests []struct{ RequestID, ResumeToken string }
	}
	if string(m.ID) != `"all"` || json.Unmarshal(m.Result, &all) != nil {
		return fmt.Errorf("all: %s", m.Raw)
	}
	w.sent = false
	for _, r := range all.Requests {
		if r.RequestID == "c" {
			w.sent, w.token = true, r.ResumeToken
		}
	}
	return nil
}

// take records one message.
func (w *wanderer) take(m jsonrpc.Message) error {
	id := jsonrpc.String(jsonrpc.Field(m.Params, "_meta", "holdfast/eventId"))
	switch {
	case m.Kind == jsonrpc.Response && string(m.ID) == `"c"`:
		w.done = true
	case id == "":
		return fmt.Errorf("no event id in %s", m.Raw)
	case w.seen[id]:
		return fmt.Errorf("event id %s came twice", id)
	default:
		w.seen[id] = true
		w.last = id
	}
	if m.Method == "notifications/requests/resumePolicy" {
		w.token = jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken"))
		return nil
	}
	w.got = append(w.got, m)
	return nil
}

// check reports whether the call's messages came once and in order.
func (w *wanderer) check(n int) error {
	f := follower{got: w.got}
	if err := f.check(n); err != nil {
		return err
	}
	if w.got[n].Error != nil {
		return fmt.Errorf("it ended with %s", w.got[n].Raw)
	}
	return nil
}

// TestDuplexCutAtEveryByte cuts a connection after each number of bytes from the server (without
// -long after each 7th), and resumes on another. Every message arrives once and in order, and the
// tool runs once.
func TestDuplexCutAtEveryByte(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		const steps = 2
		stride := 1
		if !testlong.Wanted() {
			stride = 7
		}
		n := newNode(t, config{server: server.Options{Principal: named}})
		var end atomic.Bool
		var wg sync.WaitGroup
		slots := make(chan struct{}, 16)
		for at := 1; !end.Load() && at < 4000; at += stride {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				key := fmt.Sprint(at)
				w := newWanderer(n, key, call("steps", fmt.Sprintf(`{"key":%q,"n":%d}`, key, steps)))
				err := w.goOn(open, at)
				if err == nil {
					end.Store(true)
				}
				for range 3 {
					if errors.Is(err, errAgain) {
						err = w.goOn(open, 0)
					}
				}
				if err == nil {
					err = w.check(steps)
				}
				if runs := n.runs(key); err != nil || runs != 1 {
					t.Errorf("cut at %d: %v; the tool ran %d times", at, err, runs)
				}
			})
		}
		wg.Wait()
		if !end.Load() {
			t.Error("no answer arrived whole: the cuts did not reach the end")
		}
	})
}

// TestDuplexCutAtRandom cuts connections to an official server again and again, and resumes over
// WebSockets or pipes, at random.
func TestDuplexCutAtRandom(t *testing.T) {
	t.Parallel()
	const steps = 20
	var mu sync.Mutex
	runs := map[string]int{}
	s := mcp.NewServer(&mcp.Implementation{Name: "s", Version: "1"}, nil)
	type args struct {
		Key string `json:"key"`
	}
	mcp.AddTool(s, &mcp.Tool{Name: "steps"}, func(ctx context.Context, req *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
		mu.Lock()
		runs[a.Key]++
		mu.Unlock()
		for i := range steps {
			time.Sleep(time.Duration(rand.N(1000)) * time.Microsecond) // the tool's own work
			err := req.Session.NotifyProgress(ctx, &mcp.ProgressNotificationParams{ProgressToken: req.Params.GetProgressToken(), Progress: float64(i + 1)})
			if err != nil {
				return nil, nil, err
			}
		}
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "done"}}}, nil, nil
	})
	n := newNode(t, config{server: server.Options{Principal: named}, backend: sdk.New(func(*http.Request) *mcp.Server { return s })})
	all := []dialer{openSocket, openPipes}
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			key := fmt.Sprint(i)
			w := newWanderer(n, key, call("steps", fmt.Sprintf(`{"key":%q}`, key)))
			err := errAgain
			tries := 0
			for ; errors.Is(err, errAgain) && tries < 200; tries++ {
				err = w.goOn(all[rand.N(len(all))], 500+rand.N(2000))
			}
			if err == nil {
				err = w.check(steps)
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil || runs[key] != 1 {
				t.Errorf("call %d, after %d connections: %v; the tool ran %d times", i, tries, err, runs[key])
			}
		})
	}
	wg.Wait()
}

// policy reads the resume policy of a call, and returns its token.
func (c *talker) policy(id string) string {
	c.t.Helper()
	data := c.hears("notifications/requests/resumePolicy", `"requestId":`+id+`,`)
	return jsonrpc.String(jsonrpc.Field(data, "params", "resumeToken"))
}

// TestDuplexRoams resumes a call on other connections and in other sessions, over each transport.
func TestDuplexRoams(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Principal: named}})
		c := open(n, 0, me)
		c.begin("2025-11-25", resumes)
		c.say(callAs("1", "hold", `{}`))
		token := c.policy("1")
		held := n.release(1)[0]
		progress(held, 1, 1)
		last := jsonrpc.String(jsonrpc.Field(c.hears(`"progress":1,`), "params", "_meta", "holdfast/eventId"))
		progress(held, 2, 1)
		c.hears(`"progress":2,`)

		// Over HTTP, in another session, and in none.
		p := n.connect("2025-11-25", http.Header{"Authorization": {"Bearer me"}})
		for _, from := range []*peer{p, {n: n, version: "2025-11-25", header: p.header}} {
			w := from.open("POST", "/mcp", again("1", token), "Last-Event-ID: "+last)
			if ev := w.message(); !strings.Contains(string(ev.Data), `"progress":2,`) {
				t.Errorf("after %s comes %s", last, ev.Data)
			}
			w.c.Close()
		}
		step := 2
		for _, other := range dialers {
			d := other(n, 0, me)
			d.begin("2025-11-25", resumes)
			d.say(again("1", token))
			d.policy("1")
			for i := 1; i <= step; i++ {
				d.hears(fmt.Sprintf(`"progress":%d,`, i))
			}
			step++
			progress(held, step, 1)
			d.hears(fmt.Sprintf(`"progress":%d,`, step))
			d.say(`{"jsonrpc":"2.0","id":"s","method":"requests/getStatus","params":{"requestId":1,"resumeToken":"` + token + `"}}`)
			d.hears(`"id":"s"`, `"requestId":1`, `"status":"processing"`, `"hasInputRequest":false`)
			d.cut(fin)
		}
		// Again on the first connection, after the last event that it had.
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"resumeToken":%q,"_meta":{"holdfast/lastEventId":%q}}}`, token, last))
		for i := 2; i <= step; i++ {
			c.hears(fmt.Sprintf(`"progress":%d,`, i))
		}
		held.Result(result("one"))
		c.hears(`"id":1`, "one")
		d := open(n, 0, me) // a call that has ended can be resumed too
		d.begin("2025-11-25", resumes)
		d.say(again("1", token))
		d.policy("1")
		for i := 1; i <= step; i++ {
			d.hears(fmt.Sprintf(`"progress":%d,`, i))
		}
		d.hears(`"id":1`, "one")
	})
}

// TestDuplexFromPost resumes a call of a POST on a connection that goes both ways.
func TestDuplexFromPost(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Principal: named}})
		p := &peer{n: n, version: "2025-11-25", header: http.Header{"Authorization": {"Bearer me"}}}
		r := p.post(`{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":` + resumes + `}}`)
		p.id = r.header.Get("Mcp-Session-Id")
		w := p.open("POST", "/mcp", callAs("1", "hold", `{}`))
		policy := w.message()
		token := jsonrpc.String(jsonrpc.Field(policy.Data, "params", "resumeToken"))
		held := n.release(1)[0]
		progress(held, 1, 1)
		last := w.message().ID
		w.c.Close()
		progress(held, 2, 1)
		c := open(n, 0, me)
		c.begin("2025-11-25", resumes)
		c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"resumeToken":%q,"_meta":{"holdfast/lastEventId":%q}}}`, token, last))
		c.hears(`"progress":2,`)
		held.Result(result("one"))
		c.hears(`"id":1`, "one")
	})
}

// TestDuplexClashes has requests of two sessions with the same id on one connection: the client
// could not tell them apart, and the second is refused.
func TestDuplexClashes(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Principal: named}})
		var tokens []string
		for i := range 2 {
			c := open(n, 0, me)
			c.begin("2025-11-25", resumes)
			c.say(callAs("1", "hold", `{}`))
			tokens = append(tokens, c.policy("1"))
			n.holds(i + 1)
			c.cut(rst)
		}
		held := n.release(2)
		c := open(n, 0, me)
		c.begin("2025-11-25", resumes)
		c.say(callAs("1", "hold", `{}`))
		own := c.policy("1")
		held = append(held, n.release(1)...)
		c.say(again("1", tokens[0]))
		c.fails("1", codeInvalid, "on another")
		c.say(again("1", own))
		c.policy("1")
		held[2].Result(result("own"))
		c.hears(`"id":1`, "own")

		c.say(again("1", tokens[0]))
		c.policy("1")
		for _, token := range []string{tokens[1], own} {
			c.say(again("1", token))
			c.fails("1", codeInvalid, "on another")
		}
		c.say(callAs("1", "echo", `{}`))
		c.fails("1", codeInvalid, "use an id once")
		for i, x := range held[:2] {
			x.Result(result(fmt.Sprint("result ", i)))
		}
		c.hears(`"id":1`, "result")
		c.say(callAs("1", "echo", `{"text":"free again"}`))
		c.hears("free again")
	})
}

// TestDuplexTokens resumes with wrong tokens, ids and principals: each gets an error, and the
// call goes on.
func TestDuplexTokens(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{server: server.Options{Principal: named}})
		c := open(n, 0, me)
		c.begin("2025-11-25", resumes)
		c.say(callAs("1", "ask", `{}`))
		token := c.policy("1")
		asked := c.message()
		thief := open(n, 0, "Authorization: Bearer thief")
		thief.begin("2025-11-25", resumes)
		try := func(d *talker, id, text string) {
			t.Helper()
			d.say(text)
			d.fails(id, jsonrpc.CodeInvalidParams, "")
		}
		try(thief, "1", again("1", token))
		try(c, "2", again("2", token))
		try(c, `"1"`, again(`"1"`, token))
		try(c, "1", again("1", token[:len(token)-1]+"x"))
		try(c, "1", again("1", ""))
		try(c, "1", `{"jsonrpc":"2.0","id":1,"method":"requests/resume"}`)
		try(thief, "9", `{"jsonrpc":"2.0","id":9,"method":"requests/getStatus","params":{"requestId":1,"resumeToken":"`+token+`"}}`)
		try(c, "1", `{"jsonrpc":"2.0","id":1,"method":"requests/resume","params":{"resumeToken":"`+token+`","_meta":{"holdfast/lastEventId":"nonsense"}}}`)
		thief.say(`{"jsonrpc":"2.0","id":9,"method":"requests/getStatus/all"}`)
		thief.hears(`{"requests":[]}`)
		thief.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"from":"thief"}}`, asked.ID))
		thief.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"_meta":{"holdfast/resumeToken":"` + token + `"}}}`)
		thief.say(`{"jsonrpc":"2.0","id":10,"method":"ping"}`)
		thief.hears(`"id":10`)

		// The call's own client can get its status, answer and cancel it on another connection.
		d := open(n, 0, me)
		d.begin("2025-11-25", resumes)
		d.say(`{"jsonrpc":"2.0","id":9,"method":"requests/getStatus/all"}`)
		d.hears(`"requestId":1`, token, `"method":"tools/call"`, `"hasInputRequest":true`)
		d.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"from":"me"}}`, asked.ID))
		c.hears(`"id":1`, "from", "me")
		c.say(callAs("2", "hold", `{}`))
		token = c.policy("2")
		n.release(1)
		d.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2,"_meta":{"holdfast/resumeToken":"` + token + `"}}}`)
		c.fails("2", jsonrpc.CodeServer, "cancelled")
		d.say(again("2", token))
		d.policy("2")
		d.fails("2", jsonrpc.CodeServer, "cancelled")
	})
}

// TestDuplexWithoutIDs is a client that has not asked for event ids, and gets none.
func TestDuplexWithoutIDs(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		n := newNode(t, config{})
		c := open(n, 0)
		c.begin("2025-11-25", `{"resumableRequests":{}}`)
		c.say(callAs("1", "steps", `{"n":1}`))
		for _, want := range []string{"resumePolicy", "progress", "done"} {
			if data := c.hears(want); strings.Contains(string(data), "eventId") {
				t.Errorf("got %s", data)
			}
		}
	})
}

// TestSocketLeaves is a server that ends a connection with a resumable call in flight, because of
// its age or at the tool's request (SEP-1699).
func TestSocketLeaves(t *testing.T) {
	t.Parallel()
	for _, after := range []time.Duration{0, 1500 * time.Millisecond} {
		var n *node
		var c *talker
		token := ""
		for tries := 0; token == ""; tries++ {
			n = newNode(t, config{server: server.Options{DisconnectAfter: after, Retry: 5 * time.Millisecond}})
			c = openSocket(n, 0)
			err := c.initialize("2025-11-25", resumes)
			if err == nil {
				err = c.send(callAs("1", "hold", `{}`))
			}
			var data []byte
			if err == nil {
				data, err = c.recv()
			}
			if err == nil {
				token = tokenIn(t, data)
			} else if after == 0 || tries == 10 { // on a busy machine the connection may end before
				t.Fatal(err)
			}
		}
		held := n.release(1)[0]
		if after == 0 {
			held.Call.Disconnect(7 * time.Millisecond)
			c.ended(1001, "going away; retry: 7")
		} else {
			c.ended(1001, "going away; retry: 5")
		}
		held.Result(result("late"))
		d := openSocket(n, 0, "Mcp-Session-Id: "+c.id)
		d.say(again("1", token))
		d.policy("1")
		d.hears("late")
	}
}

// TestSocketLeavesAnnounced ends a connection because of one call, while the store has not yet
// taken another call's resume policy, or its request: the client gets the policy before the
// connection ends.
func TestSocketLeavesAnnounced(t *testing.T) {
	t.Parallel()
	for _, begun := range []bool{false, true} {
		var store gated
		n := newNode(t, config{server: server.Options{Retry: 5 * time.Millisecond}, store: store.over})
		c := openSocket(n, 0)
		c.begin("2025-11-25", resumes)
		var held []*message.Exchange
		token := ""
		for _, id := range []string{"1", "2"} {
			c.say(callAs(id, "hold", `{}`))
			token = c.policy(id)
			held = append(held, n.release(1)...)
		}
		asked, opened := make(chan struct{}, 10), make(chan struct{})
		wait := func() { asked <- struct{}{}; <-opened }
		store.wait.Store(&wait)
		open := sync.OnceFunc(func() { close(opened); store.wait.Store(nil) })
		t.Cleanup(open)
		var other sync.WaitGroup
		if begun { // this append holds up the next one
			other.Go(func() { progress(held[1], 1, 0) })
			<-asked
			c.say(callAs("3", "hold", `{}`))
			n.release(1)
		} else {
			c.say(callAs("3", "hold", `{}`))
			<-asked
		}
		held[0].Call.Disconnect(7 * time.Millisecond)
		pass(t, 50*time.Millisecond) // in which the connection could end too early
		open()
		other.Wait()
		// The other call's message comes before the policy, after it, or on the next connection.
		recv := c.recv
		c.recv = func() ([]byte, error) {
			data, err := recv()
			if begun && strings.Contains(string(data), "notifications/progress") {
				return recv()
			}
			return data, err
		}
		c.policy("3")
		c.ended(1001, "going away; retry: 7")
		if begun { // the message is not lost
			d := openSocket(n, 0)
			d.begin("2025-11-25", resumes)
			d.say(again("2", token))
			d.policy("2")
			d.hears("notifications/progress", `"progress":1,`)
			held[1].Result(result("late"))
			d.hears(`"id":2`, "late")
		}
	}
}

// TestDuplexBare resumes calls on connections that have not begun a session: a token is enough,
// as over HTTP. Other requests need a session.
func TestDuplexBare(t *testing.T) {
	t.Parallel()
	bothWays(t, func(t *testing.T, open dialer) {
		f := newFarm(t, 2, config{server: server.Options{Principal: named}})
		for i, n := range f.nodes { // the call's node, and another
			w := f.nodes[0].able("2025-11-25", "me").open("POST", "/mcp", call("ask", `{}`))
			token := w.token()
			c := open(n.node, 0, me)
			c.say(ask(`"c"`, token))
			c.hears(`"processing"`)
			c.say(again(`"c"`, token))
			c.policy(`"c"`)
			asked := c.message()
			if jsonrpc.Field(asked.Params, "_meta", "holdfast/eventId") == nil {
				t.Errorf("no event id in %s", asked.Raw)
			}
			c.say(call("echo", `{}`))
			c.fails(`"c"`, codeInvalid, "must be an initialize")
			c.say(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":{"from":"node %d"}}`, asked.ID, i))
			c.hears(`"id":"c"`, fmt.Sprintf("node %d", i))

			w = f.nodes[0].able("2025-11-25", "me").open("POST", "/mcp", call("hold", `{}`))
			token = w.token()
			f.nodes[0].release(1)
			c.say(again(`"c"`, token))
			c.policy(`"c"`)
			c.say(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"c","_meta":{"holdfast/resumeToken":"` + token + `"}}}`)
			c.fails(`"c"`, jsonrpc.CodeServer, "cancelled")
			c.cut(fin)
			mcptest.Eventually(t, "the session of the connection to end", time.Minute, func() bool {
				return f.nodes[0].sessions.Sessions()+f.nodes[1].sessions.Sessions() == 2*(i+1) // the sessions of the calls
			})
		}
	})
}

// TestSocketBareStays is a WebSocket without a session on which a call was resumed: it is not
// ended for silence, however long the call takes.
func TestSocketBareStays(t *testing.T) {
	t.Parallel()
	const silence = time.Second
	n := newNode(t, config{server: server.Options{Principal: named, BodyTimeout: silence}})
	w := n.able("2025-11-25", "me").open("POST", "/mcp", call("hold", `{}`))
	token := w.token()
	var c *talker
	for tries := 0; ; tries++ {
		c = openSocket(n, 0, me)
		_ = c.send(again(`"c"`, token))
		if data, err := c.recv(); err == nil && tokenIn(t, data) == token {
			break
		} else if tries == 10 { // on a busy machine the request may come too late
			t.Fatal(err)
		}
	}
	pass(t, silence*3/2)
	n.release(1)[0].Result(result("late"))
	c.hears(`"id":"c"`, "late")
}
