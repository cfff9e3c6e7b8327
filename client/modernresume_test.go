package client_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A modern call goes on after a cut by its token, if the server supports tokens.
func TestModernResume(t *testing.T) {
	t.Parallel()
	cancelled := make(chan string, 1)
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, n int) {
		switch m.Method {
		case "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"holdfast/resumableRequests":{}}}}}`, m.ID)
		case "tools/call":
			event(w, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"secret"}}`, m.ID)
			if string(m.ID) == "2" {
				<-r.Context().Done()
			}
			cut()
		case "requests/resume":
			if n == 1 {
				cut()
			}
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
		case "notifications/cancelled":
			w.WriteHeader(http.StatusAccepted)
			cancelled <- string(m.Params)
		}
	})
	c := newRaw(t, s.url, client.Options{})
	c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
	c.answer("0")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	if m := c.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	calls, again := s.got("tools/call"), s.got("requests/resume")
	if len(calls) != 1 || len(again) != 2 || c.heard["notifications/requests/resumePolicy"] != 0 {
		t.Fatalf("%d calls, %d resumptions, %v", len(calls), len(again), c.heard)
	}
	if jsonrpc.Field(calls[0].Params, "_meta", "io.modelcontextprotocol/clientCapabilities", "extensions", "holdfast/resumableRequests") == nil {
		t.Errorf("declares %s", calls[0].Params)
	}
	for _, m := range again {
		if string(m.ID) != "1" || jsonrpc.String(jsonrpc.Field(m.Params, "resumeToken")) != "secret" || m.header.Get("Mcp-Method") != "requests/resume" ||
			m.header.Get("MCP-Protocol-Version") != "2026-07-28" || m.header.Get("Last-Event-ID") != "1" || !strings.Contains(string(m.Params), "resumableRequests") {
			t.Errorf("resumed with %s, %v", m.Raw, m.header)
		}
	}
	c.send(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"x",` + meta + `}}`)
	for len(s.got("tools/call")) < 2 {
		c.send(`{"jsonrpc":"2.0","id":3,"method":"server/discover","params":{` + meta + `}}`)
		c.answer("3")
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
	if params := <-cancelled; !strings.Contains(params, `"requestId":2`) || !strings.Contains(params, "secret") {
		t.Errorf("cancelled with %s", params)
	}
}

// A call that is made again with the host's input is another request: it is found by the token that the server gives for the id of
// this sending, or by a key of its own, and by no token or key of the request that was answered with a question.
func TestModernResumeRound(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var saved []string // the keys of the calls in the state
	var keys, unsaved []string
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, n int) {
		switch m.Method {
		case "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"experimental":{"holdfast/idempotencyKey":{}},"extensions":{"holdfast/resumableRequests":{}}}}}`, m.ID)
		case "tools/call":
			mu.Lock()
			key := strings.Trim(r.Header.Get("Idempotency-Key"), `"`)
			if keys = append(keys, key); !slices.Contains(saved, key) {
				unsaved = append(unsaved, key)
			}
			mu.Unlock()
			event(w, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"round%d"}}`, m.ID, n)
			switch n {
			case 2:
				cut()
			case 3:
				event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
				return
			}
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`, m.ID)
		case "requests/resume": // it knows no token any more
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"error":{"code":-32602,"message":"no such token"}}`, m.ID)
		}
	})
	var c *raw
	c = newRaw(t, s.url, client.Options{AskHost: true, Changed: func() {
		mu.Lock()
		defer mu.Unlock()
		for _, one := range c.State().Calls {
			saved = append(saved, one.Key)
		}
	}})
	c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
	c.answer("0")
	c.send(taskCall)
	asked := c.until(func(m jsonrpc.Message) bool { return m.Kind != jsonrpc.Notification })
	c.send(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, asked.ID)
	m := c.until(func(m jsonrpc.Message) bool { return m.Kind != jsonrpc.Notification })
	if jsonrpc.String(jsonrpc.Field(m.Result, "resultType")) != "complete" || len(s.got("tools/call")) != 3 {
		t.Errorf("%s, after %d requests", m.Raw, len(s.got("tools/call")))
	}
	if len(keys) != 3 || keys[0] == keys[1] || keys[1] != keys[2] {
		t.Errorf("the keys are %q", keys)
	}
	again := s.got("requests/resume")
	if len(again) != 1 || jsonrpc.String(jsonrpc.Field(again[0].Params, "resumeToken")) != "round2" || string(again[0].ID) != string(s.got("tools/call")[1].ID) {
		t.Errorf("resumed %d times: %v", len(again), again)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(unsaved) > 0 {
		t.Errorf("sent under keys that the state did not have: %q", unsaved)
	}
}

// A Conn that continues a modern call of another one resumes it as that one would have: from the last event, and the host sees
// no policy.
func TestModernResumeRestored(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, n int) {
		if n == 1 {
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "id: 6\ndata: %s\n\n", `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":1,"resumeToken":"secret"}}`)
			fmt.Fprintf(w, "id: 7\ndata: %s\n\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`)
			_ = http.NewResponseController(w).Flush()
			cut()
		}
		event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
	})
	declared := strings.Replace(taskCall, `"io.modelcontextprotocol/clientCapabilities":{}`, `"io.modelcontextprotocol/clientCapabilities":{"extensions":{"holdfast/resumableRequests":{}}}`, 1)
	c := newRaw(t, s.url, client.Options{State: &client.State{URL: s.url, Calls: []client.CallState{
		{ID: json.RawMessage("1"), Method: "tools/call", Token: "secret", LastEventID: "5", Request: json.RawMessage(declared)},
	}}})
	if m := c.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	again := s.got("requests/resume")
	if len(again) != 2 || again[0].header.Get("Last-Event-ID") != "5" || again[1].header.Get("Last-Event-ID") != "7" {
		t.Errorf("resumed %d times", len(again))
	}
	if n := c.heard["notifications/requests/resumePolicy"]; n != 0 || c.heard["notifications/message"] != 1 {
		t.Errorf("the host hears %v", c.heard)
	}
}

// The input of a round is not sent with the next one, also where another Conn has begun the call.
func TestRoundRestored(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
		if m.Method == "requests/resume" {
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","requestState":"later"}}`, m.ID)
			return
		}
		answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
	})
	const round = `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"x","inputResponses":{"a":{}},"requestState":"now",` + meta + `}}`
	c := newRaw(t, s.url, client.Options{AskHost: true, State: &client.State{URL: s.url, Calls: []client.CallState{
		{ID: json.RawMessage("1"), Method: "tools/call", Token: "secret", Request: json.RawMessage(round)},
	}}})
	if m := c.answer("1"); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	calls := s.got("tools/call")
	if len(calls) != 1 || jsonrpc.String(jsonrpc.Field(calls[0].Params, "requestState")) != "later" || jsonrpc.Field(calls[0].Params, "inputResponses") != nil {
		t.Errorf("%d requests: %s", len(calls), calls[0].Raw)
	}
}

// A call that is in its second round is resumed by another Conn, by the resume token of that round and the id under which the server
// knows it.
func TestRoundResumedElsewhere(t *testing.T) {
	t.Parallel()
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, n int) {
		switch m.Method {
		case "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{"extensions":{"holdfast/resumableRequests":{}}}}}`, m.ID)
		case "tools/call":
			event(w, `{"jsonrpc":"2.0","method":"notifications/requests/resumePolicy","params":{"requestId":%s,"resumeToken":"round%d"}}`, m.ID, n)
			if n == 1 {
				event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`, m.ID)
				return
			}
			open(w, r, nil, "id: 2\ndata: %s\n\n", `{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":1}}`)
		case "requests/resume":
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
		}
	})
	a := newRaw(t, s.url, client.Options{AskHost: true})
	a.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
	a.answer("0")
	a.send(taskCall)
	asked := a.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	a.send(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, asked.ID)
	a.until(func(m jsonrpc.Message) bool { return m.Method == "notifications/message" })
	var there client.State
	if err := json.Unmarshal(mcptest.Must(json.Marshal(a.State()))(t), &there); err != nil || len(there.Calls) != 1 {
		t.Fatalf("%v, %+v", err, there)
	}
	a.Detach()
	call := there.Calls[0]
	round := s.got("tools/call")[1]
	if call.Token != "round2" || string(call.Wire) != string(round.ID) || string(call.ID) == string(round.ID) {
		t.Fatalf("the call is %s, with the token %q, at the server %s; want %s", call.ID, call.Token, call.Wire, round.ID)
	}
	b := newRaw(t, s.url, client.Options{State: &there})
	if m := b.answer(string(call.ID)); m.Error != nil {
		t.Errorf("%s", m.Raw)
	}
	again := s.got("requests/resume")
	if len(again) != 1 || string(again[0].ID) != string(round.ID) || jsonrpc.String(jsonrpc.Field(again[0].Params, "resumeToken")) != "round2" {
		t.Errorf("resumed %d times: %v", len(again), again)
	}
	if n := len(s.got("tools/call")); n != 2 {
		t.Errorf("%d calls", n)
	}
}

// The cancellation of a later round waits until the server has the round's request, as it has the key only then.
func TestModernCancelRound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var seen []string
		sent := make(chan struct{})
		url, hc := serveInside(t, mcptest.Methods{
			"server/discover": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
				mcptest.JSON(w, mcptest.Result(m, `{"supportedVersions":["2026-07-28"],"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}}}`))
			},
			"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
				if jsonrpc.Field(m.Params, "inputResponses") == nil {
					mcptest.JSON(w, mcptest.Result(m, `{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`))
					return
				}
				close(sent)
				time.Sleep(time.Second) // the request is on its way
				mu.Lock()
				seen = append(seen, m.Method)
				mu.Unlock()
				open(w, r, nil, ": \n\n")
			},
			"notifications/cancelled": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
				mu.Lock()
				seen = append(seen, m.Method)
				mu.Unlock()
				w.WriteHeader(http.StatusAccepted)
			},
		})
		c := newRaw(t, url, client.Options{AskHost: true, HTTPClient: hc})
		c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
		c.answer("0")
		c.send(taskCall)
		asked := c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
		c.send(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, asked.ID)
		<-sent
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
		c.Detach()
		if strings.Join(seen, " ") != "tools/call notifications/cancelled" {
			t.Errorf("the server got %q", seen)
		}
	})
}

// A Conn that ends when the server asks for input does not make the request again without it: the next Conn asks the host.
func TestRoundAtTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rounds := 0
		let, cancelling := make(chan struct{}), make(chan struct{})
		url, hc := serveInside(t, mcptest.Methods{
			"server/discover": func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message) {
				mcptest.JSON(w, mcptest.Result(m, `{"supportedVersions":["2026-07-28"],"capabilities":{"experimental":{"holdfast/idempotencyKey":{}}}}`))
			},
			"tools/call": func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message) {
				if string(m.ID) == "2" {
					open(w, r, nil, ": \n\n")
					return
				}
				rounds++
				<-let
				mcptest.JSON(w, mcptest.Result(m, `{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}`))
			},
			"notifications/cancelled": func(w http.ResponseWriter, _ *http.Request, _ jsonrpc.Message) {
				close(cancelling)
				time.Sleep(3 * time.Second)
				w.WriteHeader(http.StatusAccepted)
			},
		})
		c := newRaw(t, url, client.Options{AskHost: true, HTTPClient: hc})
		c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
		c.answer("0")
		c.send(taskCall)
		c.send("%s", strings.Replace(taskCall, `"id":1`, `"id":2`, 1))
		synctest.Wait()
		c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`)
		<-cancelling
		go func() {
			time.Sleep(time.Second)
			close(let)
		}()
		c.Detach() // waits for the cancellation
		if s := c.State(); rounds != 1 || len(s.Calls) != 1 {
			t.Errorf("the request was made %d times: %+v", rounds, s.Calls)
		}
	})
}

// A call whose server has asked for input when its Conn ends is not under way, at a server without keys and tokens, too: the next Conn makes it again,
// and asks its own host. Once the server has the input, it is not known whether the call has run.
func TestRoundAtTheEndWithoutKeys(t *testing.T) {
	t.Parallel()
	var rounds atomic.Int32
	taken := make(chan struct{})
	s := newModernServer(t, func(w http.ResponseWriter, r *http.Request, m jsonrpc.Message, _ int) {
		switch {
		case m.Method == "server/discover":
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"supportedVersions":["2026-07-28"],"capabilities":{}}}`, m.ID)
		case m.Method != "tools/call":
		case jsonrpc.Field(m.Params, "inputResponses") == nil:
			answerJSON(w, 200, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`, m.ID)
		case rounds.Add(1) == 1:
			close(taken)
			<-r.Context().Done()
		}
	})
	asked := func(c *raw) jsonrpc.Message {
		return c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request || m.Kind == jsonrpc.Response })
	}
	next := func(c *raw) *raw {
		c.Detach()
		text := mcptest.Must(json.Marshal(c.State()))(t)
		var there client.State
		mcptest.Check(t, json.Unmarshal(text, &there))
		return newRaw(t, s.url, client.Options{State: &there, AskHost: true})
	}
	c := newRaw(t, s.url, client.Options{AskHost: true})
	c.send(`{"jsonrpc":"2.0","id":0,"method":"server/discover","params":{` + meta + `}}`)
	c.answer("0")
	c.send(taskCall)
	for range 3 {
		if m := asked(c); m.Kind != jsonrpc.Request {
			t.Fatalf("%s", m.Raw)
		}
		c = next(c)
	}
	m := asked(c)
	c.send(`{"jsonrpc":"2.0","id":%s,"result":{"roots":[]}}`, m.ID)
	<-taken
	c = next(c)
	if m := c.answer("1"); m.Error == nil || rounds.Load() != 1 {
		t.Errorf("made %d times with input: %s", rounds.Load(), m.Raw)
	}
}

// A call whose State has only the _meta of its request is resumed. If its server asks for input, the call ends, as it cannot be made again.
func TestResumeWithoutArguments(t *testing.T) {
	t.Parallel()
	for _, asks := range []bool{false, true} {
		s := newModernServer(t, func(w http.ResponseWriter, _ *http.Request, m jsonrpc.Message, _ int) {
			if asks {
				event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"input_required","inputRequests":{"a":{"method":"roots/list"}}}}`, m.ID)
				return
			}
			event(w, `{"jsonrpc":"2.0","id":%s,"result":{"resultType":"complete"}}`, m.ID)
		})
		c := newRaw(t, s.url, client.Options{AskHost: true, State: &client.State{URL: s.url, Calls: []client.CallState{{
			ID: json.RawMessage("1"), Method: "tools/call", Revision: "2026-07-28", Token: "secret",
			Request: json.RawMessage(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{` + meta + `}}`),
		}}}})
		m := c.answer("1")
		if (m.Error != nil) != asks || asks && !strings.Contains(string(m.Raw), "arguments are not known") {
			t.Errorf("%s", m.Raw)
		}
		if calls, resumed := s.got("tools/call"), s.got("requests/resume"); len(calls) != 0 || len(resumed) != 1 {
			t.Errorf("%d calls, %d resumptions", len(calls), len(resumed))
		}
	}
}
