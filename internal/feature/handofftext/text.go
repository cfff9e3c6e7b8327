// Package handofftext has the texts of hand-offs for clients: a call that takes longer than a host
// waits is answered with a handle, and goes on.
package handofftext

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"time"

	"holdfast/internal/protocol"
	"holdfast/jsonrpc"
)

// The tools by which a client asks for a call that was handed off, and cancels it.
const (
	Prefix     = "holdfast_"
	ToolWait   = Prefix + "wait"
	ToolCancel = Prefix + "cancel"
)

// Meta is the member of _meta that has a [State] in a result, and in a request the client's refusal of
// hand-offs: false.
const Meta = "holdfast/handoff"

// IsTool reports whether a tool is one of ours.
func IsTool(name string) bool { return name == ToolWait || name == ToolCancel }

// MethodAsk is the method by which a node asks another one for a call that was handed off.
const MethodAsk = "holdfast/handedOff"

// The status of a call. Tasks use the same names, where they have the status too.
const (
	Working       = "working"
	InputRequired = "input_required" // it waits for its client
	Completed     = "completed"
	Failed        = "failed" // the response is an error
	Cancelled     = "cancelled"
	Unknown       = "unknown"     // there is no such call, or it is no longer kept
	Unavailable   = "unavailable" // its node does not answer just now
)

// A State describes a call for its client, or for another node.
type State struct {
	Handle  string         `json:"handle,omitempty"`
	Status  string         `json:"status"`
	Tool    string         `json:"tool,omitempty"`    // that was called
	Message string         `json:"message,omitempty"` // of the last progress
	Error   *jsonrpc.Error `json:"error,omitempty"`   // of a call that has failed
	Next    *Next          `json:"next,omitempty"`    // the client's next step
	// Text is the text of the result. Some hosts show a model only the structured content.
	Text string `json:"text,omitempty"`
	// Seen is the number of the last answer that the client had: see [Seen].
	Seen int `json:"-"`
	// Response is the response of a call that has ended. Clients do not get this member.
	Response json.RawMessage `json:"response,omitempty"`
}

// A Next is a tool to call, with its arguments.
type Next struct {
	Tool      string         `json:"tool"`
	Arguments map[string]any `json:"arguments"`
}

// IsOver reports whether the state of the call is final.
func (s *State) IsOver() bool {
	return s.Status != Working && s.Status != InputRequired && s.Status != Unavailable
}

// End takes in the response of a call that has ended: nil if it was cancelled.
func (s *State) End(response []byte) {
	s.Response = response
	switch e := jsonrpc.Field(response, "error"); {
	case response == nil:
		s.Status = Cancelled
	case e == nil:
		s.Status = Completed
	default:
		s.Status, s.Error = Failed, new(jsonrpc.Error)
		if json.Unmarshal(e, s.Error) != nil {
			s.Error = jsonrpc.Errorf(jsonrpc.CodeInternal, "internal error: the server's error cannot be read")
		}
	}
}

// Most returns how long [ToolWait] waits at most, if calls are handed off after a time: a host
// waits for it no longer than for other tools. The rest of the time is for the network.
func Most(after time.Duration) time.Duration { return max(after/10*9, after-5*time.Second) }

// mostSeen bounds the numbers that [Seen] returns: from there on they begin anew. Numbers of JSON are exact up to it.
const mostSeen = 1 << 53

// Seen returns the argument "seen" of a [ToolWait]. Each answer asks for another number, because many hosts
// stop a model that calls a tool with the same arguments again and again.
func Seen(arguments []byte) int {
	raw := jsonrpc.Field(arguments, "seen")
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		n, err = strconv.ParseFloat(jsonrpc.String(raw), 64)
	}
	if err != nil || !(n >= 0 && n < mostSeen) {
		return 0
	}
	return int(n)
}

// Seconds returns how long a [ToolWait] with these arguments waits.
func Seconds(arguments []byte, most time.Duration) time.Duration {
	raw := jsonrpc.Field(arguments, "seconds")
	s, err := strconv.ParseFloat(string(raw), 64)
	if err != nil {
		s, err = strconv.ParseFloat(jsonrpc.String(raw), 64) // some models write the number as a string
	}
	if err != nil || math.IsNaN(s) || s > most.Seconds() {
		return most
	}
	return time.Duration(max(s, 0) * float64(time.Second))
}

// seconds returns a time in seconds, for a model: whole seconds from 1 s on.
func seconds(d time.Duration) float64 {
	if d >= time.Second {
		return math.Floor(d.Seconds())
	}
	return d.Seconds()
}

// wait returns the next call of [ToolWait].
func (s *State) wait(most time.Duration) *Next {
	return &Next{ToolWait, map[string]any{"handle": s.Handle, "seconds": seconds(most), "seen": s.Seen + 1}}
}

// text describes the call for a model.
func (n *Next) text() string {
	arguments, _ := json.Marshal(n.Arguments)
	return fmt.Sprintf("%s with the arguments %s", n.Tool, arguments)
}

// A Form is the form of results for a client.
type Form struct {
	// Modern says that results have a resultType (revision 2026-07-28).
	Modern bool
	// Bare says that the tool has an outputSchema, or may have one. Hosts then refuse a result
	// without structuredContent, or with another one, unless isError is set.
	Bare bool
}

// Answer returns the result that a call gets when it is handed off. most is how long [ToolWait]
// waits at most.
func Answer(s State, most time.Duration, f Form) []byte {
	s.Next = s.wait(most)
	stop := Next{ToolCancel, map[string]any{"handle": s.Handle}}
	text := fmt.Sprintf("The tool %q is still running. Its call goes on, and its result is kept. Do not call the tool again for it. "+
		"To get the result, call %s. If it is still running then, call that again, with the arguments that its result gives. To cancel it, call %s.", s.Tool, s.Next.text(), stop.text())
	if f.Bare {
		text = "This is not a failure. " + text
	}
	return result(text, &s, f.Bare, f)
}

// Waited returns the result of [ToolWait] for a call in a state. most is how long the tool waits at
// most.
func Waited(s State, most time.Duration, f Form) []byte {
	if !s.IsOver() {
		s.Next = s.wait(most)
	}
	switch s.Status {
	case Working:
		text := fmt.Sprintf("The tool %q is still running.", s.Tool)
		if s.Message != "" {
			text += fmt.Sprintf(" Its last progress: %s.", s.Message)
		}
		return result(text+" For the result, call "+s.Next.text()+".", &s, false, f)
	case InputRequired:
		return result(fmt.Sprintf("The tool %q waits for an answer of its user, in the session that called it. "+
			"When that is given, call %s.", s.Tool, s.Next.text()), &s, false, f)
	case Completed:
		if of := completed(&s, f); of != nil {
			return of
		}
		return result(fmt.Sprintf("The tool %q has asked for input, and its call has ended with that: call the tool %q again.", s.Tool, s.Tool), &s, true, f)
	case Failed:
		return result(fmt.Sprintf("The call of the tool %q has failed: %s (error %d).", s.Tool, s.Error.Message, s.Error.Code), &s, true, f)
	case Cancelled:
		return result(fmt.Sprintf("The call of the tool %q was cancelled.", s.Tool), &s, true, f)
	}
	return refused(&s, f)
}

// Withdrawn returns the result of [ToolCancel] for a call in a state.
func Withdrawn(s State, most time.Duration, f Form) []byte {
	switch s.Status {
	case Cancelled:
		return result(fmt.Sprintf("The call of the tool %q is cancelled.", s.Tool), &s, false, f)
	case Completed, Failed:
		s.Next = s.wait(most)
		return result(fmt.Sprintf("The call of the tool %q has ended before. For its result, call %s.", s.Tool, s.Next.text()), &s, false, f)
	}
	return refused(&s, f)
}

// refused returns the result for a handle that is of no use, at all or just now.
func refused(s *State, f Form) []byte {
	if s.Status == Unknown {
		return result("There is no call with this handle: the handle is not valid here, or what became of its call is no longer kept.", s, true, f)
	}
	return result("The call cannot be asked for at the moment. It may go on: try again in some seconds.", s, true, f)
}

// completed returns the result of a completed call for a client; nil if the result asks for input.
func completed(s *State, f Form) []byte {
	of := jsonrpc.Field(s.Response, "result")
	switch kind := jsonrpc.String(jsonrpc.Field(of, "resultType")); {
	case kind == protocol.ResultInputRequired:
		return nil
	case f.Modern && kind == "":
		of, _ = jsonrpc.Set(of, jsonrpc.Quote(protocol.ResultComplete), "resultType")
	case !f.Modern && kind != "":
		of = protocol.Without(of, "resultType")
	}
	about, _ := json.Marshal(State{Handle: s.Handle, Status: s.Status, Tool: s.Tool})
	of, _ = jsonrpc.Set(of, about, "_meta", Meta)
	return of
}

// result returns a tool's result: a text, and the state as structured content.
func result(text string, s *State, failed bool, f Form) []byte {
	told := *s
	told.Response = nil
	about, _ := json.Marshal(told)
	told.Text = text
	structured, _ := json.Marshal(told)
	content, _ := json.Marshal([]map[string]string{{"type": "text", "text": text}})
	r := append([]byte(`{"content":`), content...)
	if !f.Bare {
		r = append(append(r, `,"structuredContent":`...), structured...)
	}
	if failed {
		r = append(r, `,"isError":true`...)
	}
	if f.Modern {
		r = append(append(r, `,"resultType":`...), jsonrpc.Quote(protocol.ResultComplete)...)
	}
	r = append(append(append(r, `,"_meta":{"`...), Meta...), `":`...)
	return append(append(r, about...), "}}"...)
}

// AddTools adds our tools to the response to a tools/list, if it is the last page, or has an empty cursor: many
// clients take such a page for the last. most is how long [ToolWait] waits at most.
func AddTools(response []byte, most time.Duration) []byte {
	tools := jsonrpc.Field(response, "result", "tools")
	cursor := protocol.NextCursor(jsonrpc.Field(response, "result"))
	if len(tools) < 2 || tools[0] != '[' || cursor != nil && string(cursor) != `""` {
		return response
	}
	all := bytes.TrimSpace(tools[1 : len(tools)-1])
	list := append([]byte{'['}, all...)
	for i, t := range definitions(most) {
		if i > 0 || len(all) > 0 {
			list = append(list, ',')
		}
		text, _ := json.Marshal(t)
		list = append(list, text...)
	}
	response, _ = jsonrpc.Set(response, append(list, ']'), "result", "tools")
	return response
}

type schema map[string]any

type tool struct {
	Name        string          `json:"name"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	InputSchema schema          `json:"inputSchema"`
	Annotations map[string]bool `json:"annotations"`
}

// definitions returns the definitions of our tools for clients.
func definitions(most time.Duration) []tool {
	handle := schema{"type": "string", "description": "The handle from the result of the call, unchanged."}
	wait := schema{
		"type": "number", "minimum": 0, "maximum": seconds(most),
		"description": fmt.Sprintf("How long to wait for the result, at most. Without it: %v.", seconds(most)),
	}
	seen := schema{"type": "integer", "minimum": 0, "description": "The number that the last result asks for. Each result asks for another one."}
	return []tool{{
		Name:  ToolWait,
		Title: "Wait for a call",
		Description: "Waits for a tool call that took long and goes on in the background, and returns its result. " +
			"Use it when the result of a call has given you a handle. If the call is still running it says so: then use it again, with the arguments that it gives.",
		InputSchema: schema{"type": "object", "properties": schema{"handle": handle, "seconds": wait, "seen": seen}, "required": []string{"handle"}},
		Annotations: map[string]bool{"readOnlyHint": true, "destructiveHint": false, "idempotentHint": true, "openWorldHint": false},
	}, {
		Name:        ToolCancel,
		Title:       "Cancel a call",
		Description: "Cancels a tool call that took long and goes on in the background. Use it when its result is no longer wanted.",
		InputSchema: schema{"type": "object", "properties": schema{"handle": handle}, "required": []string{"handle"}},
		Annotations: map[string]bool{"readOnlyHint": false, "destructiveHint": true, "idempotentHint": true, "openWorldHint": false},
	}}
}
