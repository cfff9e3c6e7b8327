package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"holdfast/client"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

var hostCall = mustParse([]byte(`{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","_meta":{"progressToken":"p"}}}`))

func responseTo(id []byte) jsonrpc.Message {
	return mustParse(jsonrpc.AppendResult(nil, id, []byte(`{"ok":true}`)))
}

// A server's requests in a call that no host waits for are kept up to a bound. The caller has to answer those beyond it.
func TestPark(t *testing.T) {
	t.Parallel()
	table := newRequests()
	table.restore([]callRecord{{ID: json.RawMessage(`"old"`), Method: "tools/call", Left: time.Now(), Place: &client.CallState{}}})
	if found, _ := table.park([]byte(`"other"`), hostCall); found {
		t.Error("it is kept for a request that there is not")
	}
	for i := range maxParked + 2 {
		if found, kept := table.park([]byte(`"old"`), hostCall); !found || kept != (i < maxParked) {
			t.Fatalf("question %d: found %v, kept %v", i, found, kept)
		}
	}
	if n := len(table.unpark([]byte(`"old"`))); n != maxParked {
		t.Errorf("%d are kept", n)
	}
}

// Two equal calls of a host that come in the same moment do not get the same call of the process before: one gets it, and the other is
// told that there is none any more. A call for which the host asks as a task is given to no call.
func TestRepeatOnce(t *testing.T) {
	t.Parallel()
	other := mustParse(hostCall.WithID([]byte("2")))
	task := mustParse([]byte(`{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"_meta":{"` + metaTask + `":"holdfast-connect.1"}}}`))
	old := callRecord{
		ID: json.RawMessage("1"), Method: "tools/call", fingerprint: fingerprintOf(hostCall.Method, hostCall.Params), Left: time.Now(),
		Place: &client.CallState{}, Task: time.Now(),
	}
	table := newRequests()
	table.restore([]callRecord{old})
	one, two := table.repeatable(old.fingerprint), table.repeatable(old.fingerprint)
	if _, ok := table.repeat(one, hostCall, origin{}); !ok {
		t.Error("the first does not get the call")
	}
	if _, ok := table.repeat(two, other, origin{}); ok || table.waitsFor(other.ID) || !table.waitsFor(hostCall.ID) {
		t.Error("the second gets the call of the first")
	}
	table = newRequests()
	table.restore([]callRecord{old})
	id := table.repeatable(old.fingerprint)
	if _, ok := table.takeTask(id); !ok {
		t.Error("there is no task")
	}
	if _, ok := table.repeat(id, hostCall, origin{}); ok {
		t.Error("a call gets the task")
	}
	if _, ok := table.repeat(id, task, origin{}); !ok {
		t.Error("the task is gone")
	}
	table = newRequests()
	if toDeliver := table.adopt(&old, hostCall, origin{}); toDeliver != nil || !table.waitsFor(hostCall.ID) || table.repeatable(old.fingerprint) != nil {
		t.Error("a call that was taken over waits for another host")
	}
}

// The test reaches each transition of a request, and no others exist.
func TestRequestStates(t *testing.T) {
	t.Parallel()
	print := fingerprintOf(hostCall.Method, hostCall.Params)
	begun := func(t *testing.T, table *requests, print fingerprint) *request {
		r, raw, err := table.begin(hostCall, print, origin{})
		if err != nil {
			t.Fatal(err)
		}
		m := mustParse(raw)
		if string(m.ID) != string(r.id) || string(progressToken(m)) != string(r.id) {
			t.Errorf("sent %s", raw)
		}
		return r
	}
	restored := func(t *testing.T, table *requests, answer string) *request {
		c := callRecord{ID: json.RawMessage(`"old-1"`), Method: "tools/call", fingerprint: print, Left: time.Now(), Place: &client.CallState{}}
		if answer != "" {
			c.Answer = []byte(answer)
		}
		if places := table.restore([]callRecord{c}); (len(places) == 0) != (answer != "") {
			t.Errorf("the client continues %+v", places)
		}
		return table.byID[`"old-1"`]
	}
	const answer = `{"jsonrpc":"2.0","id":"old-1","result":{}}`
	reached := make(map[string]bool)
	for _, test := range []struct {
		from, to requestState
		event    requestEvent
		run      func(t *testing.T, table *requests) *request
	}{
		{inFlight, delivering, responded, func(t *testing.T, table *requests) *request {
			r := begun(t, table, print)
			if table.respond(responseTo(r.id)) != r || table.waitsFor(hostCall.ID) {
				t.Error("the response is not to be delivered, or the host's id is taken")
			}
			return r
		}},
		{inFlight, ended, cancelled, func(t *testing.T, table *requests) *request {
			r := begun(t, table, print)
			if string(table.cancel(hostCall.ID)) != string(r.id) || table.cancel(hostCall.ID) != nil {
				t.Error("not cancelled once")
			}
			if table.respond(responseTo(r.id)) != nil {
				t.Error("the response is delivered all the same")
			}
			return r
		}},
		{delivering, ended, delivered, func(t *testing.T, table *requests) *request {
			r := begun(t, table, print)
			table.respond(responseTo(r.id))
			table.deliver(r, true)
			return r
		}},
		{delivering, answered, refused, func(t *testing.T, table *requests) *request {
			r := begun(t, table, print)
			table.respond(responseTo(r.id))
			table.deliver(r, false)
			if r.left.IsZero() || r.hostID != nil || len(table.records(nil)) != 1 {
				t.Errorf("%+v", r)
			}
			return r
		}},
		{delivering, ended, dropped, func(t *testing.T, table *requests) *request {
			r := begun(t, table, fingerprint{}) // the request may run twice
			table.respond(responseTo(r.id))
			table.deliver(r, false)
			return r
		}},
		{abandoned, answered, responded, func(t *testing.T, table *requests) *request {
			r := restored(t, table, "")
			if table.respond(responseTo(r.id)) != nil {
				t.Error("delivered to nobody")
			}
			return r
		}},
		{abandoned, inFlight, repeated, func(t *testing.T, table *requests) *request {
			r := restored(t, table, "")
			id := table.repeatable(print)
			if toDeliver, ok := table.repeat(id, hostCall, origin{}); toDeliver != nil || !ok || !table.waitsFor(hostCall.ID) || !r.left.IsZero() {
				t.Errorf("%+v", r)
			}
			return r
		}},
		{abandoned, ended, dropped, func(t *testing.T, table *requests) *request {
			r := restored(t, table, "")
			r.left = time.Now().Add(-2 * repeatWithin)
			if id := table.repeatable(print); id != nil {
				t.Errorf("%s is not too old", id)
			}
			return r
		}},
		{answered, delivering, repeated, func(t *testing.T, table *requests) *request {
			r := restored(t, table, answer)
			if toDeliver, _ := table.repeat(table.repeatable(print), hostCall, origin{}); toDeliver != r || string(r.hostID) != "1" {
				t.Errorf("%+v is not to be delivered", r)
			}
			return r
		}},
		{answered, ended, dropped, func(t *testing.T, table *requests) *request {
			r := restored(t, table, answer)
			table.drop(r.id)
			return r
		}},
	} {
		table := newRequests()
		r := test.run(t, table)
		if r.state != test.to || (test.to == ended) != (table.byID[string(r.id)] == nil) {
			t.Errorf("event %d in state %d leads to %d, want %d", test.event, test.from, r.state, test.to)
		}
		if requestMoves[test.from][test.event] != test.to {
			t.Errorf("event %d in state %d is not in the table", test.event, test.from)
		}
		reached[fmt.Sprint(test.from, test.event)] = true
	}
	for from, moves := range requestMoves {
		for event := range moves {
			if !reached[fmt.Sprint(from, event)] {
				t.Errorf("no test of event %d in state %d", event, from)
			}
		}
	}
	for from := inFlight; from <= ended; from++ {
		for event := responded; event <= dropped; event++ {
			r := &request{state: from}
			if _, ok := requestMoves[from][event]; newRequests().move(r, event) != ok || !ok && r.state != from {
				t.Errorf("event %d in state %d is not as the table says", event, from)
			}
		}
	}
}

// A host's request ids are unique while in flight, and free again after the response.
func TestRequestIDs(t *testing.T) {
	t.Parallel()
	table := newRequests()
	r, _, err := table.begin(hostCall, fingerprint{}, origin{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := table.begin(hostCall, fingerprint{}, origin{}); !errors.Is(err, errDuplicateID) {
		t.Errorf("the same id twice: %v", err)
	}
	progress := mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/progress", fmt.Appendf(nil, `{"progressToken":%s,"progress":1}`, r.id)))
	told := func() []byte { raw, _ := table.progress(progress); return raw }
	if got := mustParse(told()); string(jsonrpc.Field(got.Params, "progressToken")) != `"p"` {
		t.Errorf("%s", got.Raw)
	}
	part := mustParse(jsonrpc.AppendRequest(nil, nil, "notifications/tools/list_changed", fmt.Appendf(nil, `{"_meta":{%q:%s}}`, protocol.MetaSubscriptionID, r.id)))
	if got := mustParse(table.subscribed(part)); string(jsonrpc.Field(got.Params, "_meta", protocol.MetaSubscriptionID)) != "1" {
		t.Errorf("%s", got.Raw)
	}
	table.respond(responseTo(r.id))
	if table.settled(nil) {
		t.Error("settled while a response is being written")
	}
	table.deliver(r, true)
	if !table.settled(nil) || table.settled([]client.CallState{{ID: json.RawMessage(`"cancelled"`)}}) {
		t.Error("settled, or not")
	}
	if told() != nil {
		t.Error("progress of a request that has ended")
	}
	if _, _, err := table.begin(hostCall, fingerprint{}, origin{}); err != nil {
		t.Errorf("the id is not free: %v", err)
	}
}

// A request of the bridge itself has an id like others. Its response does not go to the host.
func TestOwnRequests(t *testing.T) {
	t.Parallel()
	table := newRequests()
	id, response := table.beginOwn()
	if table.respond(responseTo(id)) != nil {
		t.Error("delivered to the host")
	}
	if m := <-response; string(m.ID) != string(id) {
		t.Errorf("%s", m.Raw)
	}
	id, _ = table.beginOwn()
	table.endOwn(id)
	if table.respond(responseTo(id)) != nil || len(table.records(nil)) != 0 {
		t.Error("a late response is the host's")
	}
}

// When a host leaves, its calls are marked, so that other processes may take them over.
// Until the bridge has ended, it still delivers responses.
func TestRequestsLeft(t *testing.T) {
	t.Parallel()
	table := newRequests()
	r, _, err := table.begin(hostCall, fingerprintOf(hostCall.Method, hostCall.Params), origin{})
	if err != nil {
		t.Fatal(err)
	}
	places := []client.CallState{{ID: r.id}}
	if calls := table.records(places); len(calls) != 1 || !calls[0].Left.IsZero() {
		t.Errorf("%+v", calls)
	}
	table.leave()
	if calls := table.records(nil); len(calls) != 1 || calls[0].Left.IsZero() || calls[0].Place == nil {
		t.Errorf("%+v", calls)
	}
	if table.respond(responseTo(r.id)) != r {
		t.Error("not delivered")
	}
}
