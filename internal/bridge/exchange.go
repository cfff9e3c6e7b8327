package bridge

import (
	"encoding/json"
	"strconv"
	"sync/atomic"
	"time"

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

// An exchange is what a host wants with one request. It is the [backend.Call] of its
// conversation. Of a legacy host it only says whether the response was taken.
type exchange struct {
	refused  atomic.Bool   // the host has not taken the response
	answered chan struct{} // closed when initialize is answered; nil for others
	id       []byte        // in the conversation; does not change

	// Of a modern host. Guarded by modernHost.mu.
	state  exchangeState
	hostID []byte
	token  []byte // the host's progress token, or nil
	method string
	params []byte // of the request, as long as it may be made again
	timer  *time.Timer
	input
	answer []byte // the response, where the host was not there to take it
	task   *task
	listen *listen
}

// input is what an exchange asks its host for.
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

// question returns the place of a question in those without a response, or -1.
func (x *exchange) question(id []byte) int {
	for i := range x.questions {
		if string(jsonrpc.Key(x.questions[i].ID)) == string(jsonrpc.Key(id)) {
			return i
		}
	}
	return -1
}

// inputRequests returns the questions as InputRequiredResult and tasks have them.
func (x *exchange) inputRequests() []byte {
	requests := []byte(`{}`)
	for _, q := range x.questions {
		params := q.Params
		if params == nil { // without which the go-sdk's client cannot read it
			params = []byte(`{}`)
		}
		text, _ := jsonrpc.Set(jsonrpc.Object("method", q.Method), params, "params")
		requests, _ = jsonrpc.Set(requests, text, inputKey(q.ID))
	}
	return requests
}

// inputKey returns the key of a question in inputRequests. It is of the server's id, so that a
// question which a server repeats for another process has the same.
func inputKey(id []byte) string {
	if id[0] == '"' {
		return "s-" + jsonrpc.String(id)
	}
	return "n-" + string(jsonrpc.Key(id))
}

// A task is what a call has become that was not answered soon.
type task struct {
	id      string
	found   bool // its call is known; else it is looked for
	created time.Time
	updated time.Time
	message string            // the last progress message
	waiting []jsonrpc.Message // requests of the host about it, until it is found
}

// Statuses of a task.
const (
	taskWorking       = "working"
	taskInputRequired = "input_required"
	taskCompleted     = "completed"
	taskFailed        = "failed"
	taskCancelled     = "cancelled"
)

// status returns the status of the exchange's task.
func (x *exchange) status() string {
	switch {
	case x.state == isTask && len(x.questions) > 0:
		return taskInputRequired
	case x.state == isTask:
		return taskWorking
	case x.answer == nil:
		return taskCancelled
	case jsonrpc.Field(x.answer, "result") != nil:
		return taskCompleted
	}
	return taskFailed
}

// How often a host is told to ask.
const (
	minPoll  = 500 * time.Millisecond
	maxPoll  = 5 * time.Second
	pollPart = 20 // of the task's age
)

// tell returns the task as the host is told of it. kind is its resultType, or "".
func (x *exchange) tell(kind string) []byte {
	t := x.task
	end := time.Now()
	if x.state != isTask {
		end = t.updated
	}
	age := max(end.Sub(t.created), 0)
	what := struct {
		Type    string          `json:"resultType,omitempty"`
		ID      string          `json:"taskId"`
		Status  string          `json:"status"`
		Message string          `json:"statusMessage,omitempty"`
		Created string          `json:"createdAt"`
		Updated string          `json:"lastUpdatedAt"`
		TTL     int64           `json:"ttlMs"`
		Poll    int64           `json:"pollIntervalMs"`
		Asked   json.RawMessage `json:"inputRequests,omitempty"`
		Result  json.RawMessage `json:"result,omitempty"`
		Error   json.RawMessage `json:"error,omitempty"`
	}{
		Type: kind, ID: t.id, Status: x.status(), Message: t.message,
		Created: taskTime(t.created), Updated: taskTime(t.updated),
		TTL: (age + keepTask).Milliseconds(), Poll: min(max(minPoll, age/pollPart), maxPoll).Milliseconds(),
	}
	switch what.Status {
	case taskInputRequired:
		what.Asked = x.inputRequests()
	case taskCompleted:
		what.Result = jsonrpc.Field(x.answer, "result")
	case taskFailed:
		what.Error = jsonrpc.Field(x.answer, "error")
		if text := jsonrpc.String(jsonrpc.Field(what.Error, "message")); text != "" {
			what.Message = text
		}
	}
	text, err := json.Marshal(what)
	if err != nil { // what the server has sent was JSON
		return []byte(`{}`)
	}
	return text
}

// taskTime returns a time as tasks have it: ISO 8601.
func taskTime(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }

// newExchangeID returns the id of an exchange in its conversation.
func newExchangeID(count uint64) []byte { return strconv.AppendUint(nil, count, 10) }
