package followcall

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"holdfast/client"
	"holdfast/jsonrpc"
)

// TokenPrefix begins each token. It names the format.
const TokenPrefix = "hf1."

// MaxToken bounds a token, in bytes.
const MaxToken = 64 << 10

// Token returns a token with which another process, on any machine, can resume the one call
// of a state. It is a secret. It is "" if the call cannot be resumed from elsewhere, or only with a longer token than [MaxToken].
func Token(s client.State) string {
	if len(s.Calls) != 1 {
		return ""
	}
	call := s.Calls[0]
	session := cmp.Or(call.Session, s.Session)
	call.Key, call.Session = "", ""
	if call.Revision == "" {
		call.Request = nil // it would make the token long
	}
	small := client.State{URL: s.URL, Revision: s.Revision}
	if call.Token != "" {
		call.Stream = "" // the resume token finds the call without the session
	} else {
		small.Session, small.Endpoint = session, s.Endpoint
	}
	if !located(call) {
		return ""
	}
	// Values that ParseToken can fill in are left out.
	call.Stream = strings.TrimPrefix(call.Stream, s.URL)
	if call.Method == ToolsCall {
		call.Method = ""
	}
	small.Calls = []client.CallState{call}
	token := tokenOf(small)
	if meta := jsonrpc.Field(call.Request, "params", "_meta"); token == "" && call.Token != "" && meta != nil {
		// The arguments are too long. Without them the call can be resumed, but not made again with input.
		params, _ := jsonrpc.Set([]byte(`{}`), meta, "_meta")
		small.Calls[0].Request = jsonrpc.AppendRequest(nil, call.ID, s.Calls[0].Method, params)
		token = tokenOf(small)
	}
	return token
}

// tokenOf returns a state as a token; "" if that would be longer than [MaxToken].
func tokenOf(s client.State) string {
	text, err := json.Marshal(s)
	if err != nil || len(TokenPrefix)+base64.RawURLEncoding.EncodedLen(len(text)) > MaxToken {
		return ""
	}
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(text)
}

// HasStatus reports whether a server can tell the status of a call.
func HasStatus(c client.CallState) bool {
	return c.Task != "" || c.Token != "" && c.Revision == ""
}

// located reports whether the server has said where a call can be found. An event id does not lead to a call of 2026-07-28, which has no GET.
func located(c client.CallState) bool {
	return c.Token != "" || c.Stream != "" || c.LastEventID != "" && c.Revision == "" || c.Task != ""
}

// errDamaged says that a token is not as it was made.
var errDamaged = errors.New("the token is damaged, or a part of it is missing: copy it as a whole, without a line break")

// IsToken reports whether a text is meant as a token, and not as a name.
func IsToken(text string) bool {
	text = strings.TrimSpace(text)
	return strings.HasPrefix(text, "hf") && strings.Contains(text, ".")
}

// ParseToken returns the state of which [Token] has made a token.
func ParseToken(text string) (client.State, error) {
	var s client.State
	coded, ok := strings.CutPrefix(strings.TrimSpace(text), TokenPrefix)
	if !ok {
		return s, fmt.Errorf("want a token as holdfast call prints it: it begins with %q", TokenPrefix)
	}
	data, err := base64.RawURLEncoding.DecodeString(coded)
	if err != nil {
		return s, errDamaged
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, errDamaged
	}
	if err := checkState(s); err != nil {
		return s, err
	}
	call := &s.Calls[0]
	if strings.HasPrefix(call.Stream, "?") {
		call.Stream = s.URL + call.Stream
	}
	if call.Method == "" {
		call.Method = ToolsCall
	}
	return s, nil
}

// ToolsCall is the method of a call of a tool.
const ToolsCall = "tools/call"

// checkState returns an error if a state does not say where one call is.
func checkState(s client.State) error {
	if len(s.Calls) != 1 || s.URL == "" {
		return errors.New("the token names no call")
	}
	c := s.Calls[0]
	if !isID(c.ID) || c.Wire != nil && !isID(c.Wire) {
		return errors.New("the token names no call")
	}
	if !located(c) && (c.Key == "" || len(c.Request) == 0) {
		return errors.New("the token does not say where the call is")
	}
	return nil
}

// isID reports whether a text is the id of a request, as JSON.
func isID(text []byte) bool {
	m, err := jsonrpc.Parse(jsonrpc.AppendRequest(nil, text, "x", nil))
	return err == nil && m.Kind == jsonrpc.Request
}

// oneCall returns a state with only the call that has an id; false if there is none.
func oneCall(s client.State, id []byte) (client.State, bool) {
	for _, c := range s.Calls {
		if bytes.Equal(c.ID, id) {
			s.Calls = []client.CallState{c}
			// A process that resumes the call begins no session.
			s.Initialize, s.Result, s.Ready, s.LastEventID = nil, nil, false, ""
			return s, true
		}
	}
	return s, false
}
