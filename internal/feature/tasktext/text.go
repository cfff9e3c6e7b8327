// Package tasktext has the texts about tasks for clients (the extension io.modelcontextprotocol/tasks), for all parts of
// Holdfast that have tasks.
package tasktext

import (
	"encoding/json"
	"strconv"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// A Text is a task as its client sees it.
type Text struct {
	ResultType string          `json:"resultType,omitempty"`
	ID         string          `json:"taskId"`
	Status     string          `json:"status"`
	Message    string          `json:"statusMessage,omitempty"`
	Created    string          `json:"createdAt"`
	Updated    string          `json:"lastUpdatedAt"`
	TTL        int64           `json:"ttlMs"`
	Poll       int64           `json:"pollIntervalMs"`
	Asked      json.RawMessage `json:"inputRequests,omitempty"`
	Result     json.RawMessage `json:"result,omitempty"`
	Error      json.RawMessage `json:"error,omitempty"`
}

// Ended reports whether the task's status is final.
func (t *Text) Ended() bool {
	return t.Status == protocol.TaskCompleted || t.Status == protocol.TaskFailed || t.Status == protocol.TaskCancelled
}

// End takes in the response that ended the call.
func (t *Text) End(response []byte) {
	result := jsonrpc.Field(response, "result")
	switch {
	case result == nil:
	case jsonrpc.String(jsonrpc.Field(result, "resultType")) == protocol.ResultInputRequired:
		response = jsonrpc.AppendError(nil, []byte("0"), errAsks)
	default:
		t.Status, t.Result = protocol.TaskCompleted, result
		return
	}
	t.Status, t.Error = protocol.TaskFailed, jsonrpc.Field(response, "error")
	if message := jsonrpc.String(jsonrpc.Field(t.Error, "message")); message != "" {
		t.Message = message
	}
}

// errAsks ends a task if its server asks by a result, as revision 2026-07-28 does, in the moment in
// which the call becomes a task: no client makes the request again.
var errAsks = jsonrpc.Errorf(jsonrpc.CodeServer, "the server asks for input after the call has become a task, in a way that a task cannot pass on")

// AsksForNothingElse reports whether the filter of a subscriptions/listen asks only for tasks.
func AsksForNothingElse(filter []byte) bool {
	only := true
	jsonrpc.Each(filter, func(name, value []byte) {
		switch string(value) {
		case "false", "null", "[]":
		default:
			only = only && string(name) == "taskIds"
		}
	})
	return only
}

// The rest of this file writes tasks as JSON. A client that waits for a task asks for it again and
// again, and package json would take as long as the rest of that work.

// JSON returns the task as JSON.
func (t *Text) JSON() []byte {
	dst := append(make([]byte, 0, 300+len(t.Asked)+len(t.Result)+len(t.Error)), '{')
	if t.ResultType != "" {
		dst = append(append(append(dst, `"resultType":"`...), t.ResultType...), `",`...)
	}
	dst = append(append(append(dst, `"taskId":"`...), t.ID...), `","status":"`...)
	dst = append(append(dst, t.Status...), '"')
	if t.Message != "" {
		dst = append(append(dst, `,"statusMessage":`...), jsonrpc.Quote(t.Message)...)
	}
	dst = append(append(dst, `,"createdAt":"`...), t.Created...)
	dst = append(append(dst, `","lastUpdatedAt":"`...), t.Updated...)
	dst = strconv.AppendInt(append(dst, `","ttlMs":`...), t.TTL, 10)
	dst = strconv.AppendInt(append(dst, `,"pollIntervalMs":`...), t.Poll, 10)
	for _, member := range [...]struct {
		name  string
		value []byte
	}{{`,"inputRequests":`, t.Asked}, {`,"result":`, t.Result}, {`,"error":`, t.Error}} {
		if member.value != nil {
			dst = append(append(dst, member.name...), member.value...)
		}
	}
	return append(dst, '}')
}

// layout is the layout of times in tasks: ISO 8601.
const layout = "2006-01-02T15:04:05.000Z07:00"

// Time returns a time in ISO 8601, in UTC and with milliseconds.
func Time(t time.Time) string {
	t = t.UTC()
	year, month, day := t.Date()
	hour, minute, second := t.Clock()
	if year < 0 || year > 9999 {
		return t.Format(layout)
	}
	text := [...]byte{'0', '0', '0', '0', '-', '0', '0', '-', '0', '0', 'T', '0', '0', ':', '0', '0', ':', '0', '0', '.', '0', '0', '0', 'Z'}
	digits := func(n, last int) {
		for ; n > 0; n /= 10 {
			text[last] += byte(n % 10)
			last--
		}
	}
	digits(year, 3)
	digits(int(month), 6)
	digits(day, 9)
	digits(hour, 12)
	digits(minute, 15)
	digits(second, 18)
	digits(t.Nanosecond()/int(time.Millisecond), 22)
	return string(text[:])
}
