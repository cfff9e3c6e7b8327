package bridge

import (
	"strconv"
	"sync/atomic"
	"time"

	"holdfast/internal/feature/tasktext"
	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// exchangeState is where a request of a modern host is:
//
//	state    event      next state
//	waiting  answered   over      the host has the response
//	waiting  asks       asking    the host has an InputRequiredResult, and its call goes on
//	waiting  handedOff  isTask    the host has the id of a task, and its call goes on
//	waiting  left       over      the host has cancelled the request
//	asking   returns    waiting   the host has made the request again, with input
//	asking   left       over      the host has not come back in time
//	isTask   answered   settled   the task is completed or failed
//	isTask   left       settled   the host has cancelled the task
//	settled  left       over      the task is not kept any longer
type exchangeState uint8

const (
	waiting exchangeState = iota
	asking
	isTask
	settled
	over
)

type exchangeEvent uint8

const (
	isAnswered exchangeEvent = iota + 1
	asks
	handedOff
	returns
	left
)

// exchangeMoves is the table of [exchangeState].
var exchangeMoves = map[exchangeState]map[exchangeEvent]exchangeState{
	waiting: {isAnswered: over, asks: asking, handedOff: isTask, left: over},
	asking:  {returns: waiting, left: over},
	isTask:  {isAnswered: settled, left: settled},
	settled: {left: over},
}

// An exchange is a request of the host, and its progress. It is the [backend.Call] of its
// conversation. For a legacy host it has the first group of fields only.
type exchange struct {
	refused  atomic.Bool   // the host has not taken the response
	answered chan struct{} // closed when initialize is answered; nil for others
	told     atomic.Bool   // initialize got a known answer
	id       []byte        // in the conversation; does not change
	key      string        // of a legacy host's request with a result to keep ([known]); "" for others

	// Of a modern host. Guarded by modernHost.mu.
	state  exchangeState
	hostID []byte
	token  []byte // the host's progress token, or nil
	method string
	params []byte // of the request, as long as it may be made again
	timer  *time.Timer
	input
	answer []byte // the response, if the host was not there to take it
	task   *task
	listen *listen
}

// input has the questions that an exchange asks its host.
type input struct {
	questions []jsonrpc.Message // requests of the server without a response
	state     string            // requestState, in state asking
}

// Disconnect implements [backend.Call]. There is no connection but the host's.
func (x *exchange) Disconnect(time.Duration) {}

// move changes the state by an event. It reports whether the table has such a transition; if
// not, nothing changes. modernHost.mu is held.
func (x *exchange) move(e exchangeEvent) bool {
	next, ok := exchangeMoves[x.state][e]
	if ok {
		x.state = next
		if x.timer != nil {
			x.timer.Stop()
		}
	}
	return ok
}

// question returns the index of a question in x.questions, or -1.
func (x *exchange) question(id []byte) int {
	for i := range x.questions {
		if string(jsonrpc.Key(x.questions[i].ID)) == string(jsonrpc.Key(id)) {
			return i
		}
	}
	return -1
}

// inputRequests returns the questions in the form of InputRequiredResult and of tasks.
func (x *exchange) inputRequests() []byte {
	requests := []byte{'{'}
	for _, q := range x.questions { // no two have the same id
		params := q.Params
		if params == nil { // the go-sdk's client cannot read a request without params
			params = []byte(`{}`)
		}
		text, _ := jsonrpc.Set(jsonrpc.Object("method", q.Method), params, "params")
		if len(requests) > 1 {
			requests = append(requests, ',')
		}
		requests = append(append(append(requests, jsonrpc.Quote(inputKey(q.ID))...), ':'), text...)
	}
	return append(requests, '}')
}

// inputKey returns the key of a question in inputRequests. It is made from the server's id, so
// that a question that a server repeats for another process has the same key.
func inputKey(id []byte) string {
	if id[0] == '"' {
		return "s-" + jsonrpc.String(id)
	}
	return "n-" + string(jsonrpc.Key(id))
}

// A task is a call that was not answered soon: its host asks about it by an id.
type task struct {
	id      string
	found   bool // its call is known; else the bridge looks for it
	created time.Time
	updated time.Time
	message string            // the last progress message
	waiting []jsonrpc.Message // requests of the host about it, until it is found
}

// status returns the status of the exchange's task.
func (x *exchange) status() string {
	switch {
	case x.state == isTask && len(x.questions) > 0:
		return protocol.TaskInputRequired
	case x.state == isTask:
		return protocol.TaskWorking
	case x.answer == nil:
		return protocol.TaskCancelled
	case jsonrpc.Field(x.answer, "result") != nil:
		return protocol.TaskCompleted
	}
	return protocol.TaskFailed
}

// tell returns the JSON of the task for the host. kind is its resultType, or "".
func (x *exchange) tell(kind string) []byte {
	t := x.task
	end := time.Now()
	if x.state != isTask {
		end = t.updated
	}
	age := max(end.Sub(t.created), 0)
	what := tasktext.Text{
		ResultType: kind, ID: t.id, Status: x.status(), Message: t.message,
		Created: tasktext.Time(t.created), Updated: tasktext.Time(t.updated),
		TTL: (age + keepTask).Milliseconds(), Poll: tasktext.PollAfter(age).Milliseconds(),
	}
	switch {
	case what.Status == protocol.TaskInputRequired:
		what.Asked = x.inputRequests()
	case what.Ended() && x.answer != nil:
		what.End(x.answer)
	}
	return what.JSON()
}

// newExchangeID returns the id of an exchange in its conversation.
func newExchangeID(count uint64) []byte { return strconv.AppendUint(nil, count, 10) }
