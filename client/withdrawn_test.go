package client_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"holdfast/client"
	"holdfast/internal/mcptest"
	"holdfast/jsonrpc"
)

// A server that begins its ids anew asks under the id of an older question, which the host may still answer: the host knows the
// new one by another id. It gets it once, and hears of its withdrawal under that id.
func TestWithdrawnUnderAnotherID(t *testing.T) {
	t.Parallel()
	const question = `{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":%q}}`
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m, perr := jsonrpc.Parse(body)
		if err != nil || perr != nil || m.Kind != jsonrpc.Request {
			w.WriteHeader(http.StatusMethodNotAllowed)
			return
		}
		if string(m.ID) == "1" {
			event(w, question, "old")
		} else {
			event(w, question, "new")
			fmt.Fprintf(w, "data: "+question+"\n\n", "new")
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":7}}\n\n")
		}
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
	}))
	c := newRaw(t, url, client.Options{Transport: client.HTTP})
	all := func(jsonrpc.Message) bool { return true }
	for id := 1; id <= 2; id++ {
		c.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
		asked := c.until(all)
		if asked.Kind != jsonrpc.Request || (string(asked.ID) == "7") != (id == 1) {
			t.Fatalf("call %d: the host gets %s", id, asked.Raw)
		}
		if id == 2 {
			want := `{"requestId":` + string(asked.ID) + `}`
			if m := c.until(all); !strings.Contains(string(m.Raw), want) || m.Method != "notifications/cancelled" {
				t.Errorf("the host gets %s, want the withdrawal of %s", m.Raw, asked.ID)
			}
		}
		if m := c.until(all); m.Kind != jsonrpc.Response {
			t.Errorf("call %d: the host gets %s", id, m.Raw)
		}
	}
}

// asksAlike returns a client of a server that asks under the id 7 in each call. Call 1 ends then, so that the host knows the others' questions by
// other ids as long as it has not answered that one; the call taking ends, once goOn is called, after the withdrawal of its question; the others
// wait for the end of the test. call makes a call, and returns its question as the host gets it.
func asksAlike(t *testing.T, taking string) (c *raw, call func(id int) jsonrpc.Message, goOn func()) {
	asked, end := make(chan struct{}), make(chan struct{})
	url := mcptest.Serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		m, perr := jsonrpc.Parse(body)
		if err != nil || perr != nil || m.Kind != jsonrpc.Request {
			w.WriteHeader(http.StatusAccepted)
			return
		}
		event(w, `{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{}}`)
		switch string(m.ID) {
		case "1":
		case taking:
			<-asked
			fmt.Fprint(w, "data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":7}}\n\n")
		default:
			<-end
		}
		fmt.Fprintf(w, "data: {\"jsonrpc\":\"2.0\",\"id\":%s,\"result\":{}}\n\n", m.ID)
	}))
	c = newRaw(t, url, client.Options{Transport: client.HTTP})
	t.Cleanup(func() { close(end) })
	call = func(id int) jsonrpc.Message {
		c.send(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"x"}}`, id)
		return c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Request })
	}
	call(1)
	c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Response })
	return c, call, func() { close(asked) }
}

// withdraws checks that the host gets the withdrawal of a question next.
func withdraws(t *testing.T, c *raw, question jsonrpc.Message) {
	t.Helper()
	m := c.until(func(m jsonrpc.Message) bool { return m.Kind == jsonrpc.Notification })
	if want := `{"requestId":` + string(question.ID) + `}`; !strings.Contains(string(m.Raw), want) {
		t.Errorf("the host gets %s, want the withdrawal of %s", m.Raw, question.ID)
	}
}

// Where calls that run beside each other have each asked under one id, the withdrawal is that of the call on whose stream it comes.
func TestWithdrawnInItsCall(t *testing.T) {
	t.Parallel()
	c, call, goOn := asksAlike(t, "2")
	second := call(2)
	for id := range 8 {
		call(3 + id)
	}
	goOn()
	withdraws(t, c, second)
}

// A question that the host knows by its own id is withdrawn by it, also if the host knows the question of another call, which has the same id, by a
// new one.
func TestWithdrawnUnderItsOwnID(t *testing.T) {
	t.Parallel()
	c, call, goOn := asksAlike(t, "3")
	call(2)
	c.send(`{"jsonrpc":"2.0","id":7,"result":{"action":"cancel"}}`) // the host's late answer to the question of call 1
	third := call(3)
	goOn()
	withdraws(t, c, third)
}
