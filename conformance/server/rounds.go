package main

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The tools of this file ask the client with InputRequests (2026-07-28, Multi Round-Trip Requests):
// a handler is called again with the client's answers, and has no state of its own.

// A round has the answers and the state with which a tool was called.
type round struct {
	answers mcp.InputResponseMap
	state   string // the text in requestState, after the check; "" in the first round
}

// accepted returns a field of the form that the user has filled in, or "".
func (r round) accepted(key, field string) string {
	res, ok := r.answers[key].(*mcp.ElicitResult)
	if !ok || res.Action != "accept" {
		return ""
	}
	switch v := res.Content[field].(type) {
	case string:
		return v
	case bool:
		if v {
			return "true"
		}
	}
	return ""
}

// ask returns a request for a form with one field.
func ask(message, field, kind string) *mcp.ElicitParams {
	return &mcp.ElicitParams{Message: message, RequestedSchema: map[string]any{
		"type":       "object",
		"properties": map[string]any{field: map[string]any{"type": kind}},
		"required":   []string{field},
	}}
}

// prompted returns a request to the client's model.
//
//nolint:staticcheck // deprecated as of 2026-07-28, and still there
func prompted(message string, most int64) *mcp.CreateMessageParams {
	return &mcp.CreateMessageParams{
		Messages:  []*mcp.SamplingMessage{{Role: "user", Content: &mcp.TextContent{Text: message}}},
		MaxTokens: most,
	}
}

// states makes and checks requestState. A state that the client brings back is trusted only with a
// mark of this server.
type states struct{ key []byte }

func newStates() states {
	key := make([]byte, 32)
	_, _ = rand.Read(key) // it never fails
	return states{key}
}

func (s states) mark(tool, text string) string {
	h := hmac.New(sha256.New, s.key)
	h.Write([]byte(tool + "\x00" + text))
	return base64.RawURLEncoding.EncodeToString(h.Sum(nil))
}

func (s states) seal(tool, text string) string { return text + "." + s.mark(tool, text) }

func (s states) open(tool, sealed string) (string, error) {
	i := strings.LastIndexByte(sealed, '.')
	if i < 0 || !hmac.Equal([]byte(sealed[i+1:]), []byte(s.mark(tool, sealed[:i]))) {
		return "", &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: "requestState is not of this server"}
	}
	return sealed[:i], nil
}

// asked returns a result that asks for input. The caller seals the state for the tool.
func asked(requests mcp.InputRequestMap, state string) *mcp.CallToolResult {
	return &mcp.CallToolResult{InputRequests: requests, RequestState: state}
}

func said(s string) *mcp.CallToolResult { return &mcp.CallToolResult{Content: text(s)} }

// addRounds adds the tools and the prompt that ask with InputRequests.
func addRounds(s *mcp.Server) {
	seals := newStates()
	add := func(name, description string, run func(r round) *mcp.CallToolResult) {
		s.AddTool(&mcp.Tool{
			Name: name, Description: description, InputSchema: json.RawMessage(`{"type":"object"}`),
		}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
			r := round{answers: req.Params.InputResponses}
			var err error
			if sealed := req.Params.RequestState; sealed != "" {
				if r.state, err = seals.open(name, sealed); err != nil {
					return nil, err
				}
			}
			res := run(r)
			if res.RequestState != "" {
				res.RequestState = seals.seal(name, res.RequestState)
			}
			return res, nil
		})
	}
	addOneRound(add)
	addStateful(add)
	s.AddTool(&mcp.Tool{
		Name: "test_input_required_result_capabilities", Description: "Asks for what the client can do, and for nothing else.",
		InputSchema: json.RawMessage(`{"type":"object"}`),
	}, askWithin)
	s.AddPrompt(&mcp.Prompt{
		Name: "test_input_required_result_prompt", Description: "A prompt that asks the user for a context.",
	}, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
		what := round{answers: req.Params.InputResponses}.accepted("user_context", "context")
		if what == "" {
			return &mcp.GetPromptResult{InputRequests: mcp.InputRequestMap{
				"user_context": ask("What context should the prompt use?", "context", "string"),
			}}, nil
		}
		return &mcp.GetPromptResult{Messages: []*mcp.PromptMessage{
			{Role: "user", Content: &mcp.TextContent{Text: "Consider this: " + what}},
		}}, nil
	})
}

// An adder adds a tool of this file.
type adder func(name, description string, run func(r round) *mcp.CallToolResult)

// addOneRound adds the tools that ask once, for one input.
//
//nolint:staticcheck // as in prompted
func addOneRound(add adder) {
	add("test_input_required_result_elicitation", "Asks for a name, and greets.", func(r round) *mcp.CallToolResult {
		if name := r.accepted("user_name", "name"); name != "" {
			return said("Hello, " + name + "!")
		}
		return asked(mcp.InputRequestMap{"user_name": ask("What is your name?", "name", "string")}, "")
	})
	add("test_input_required_result_sampling", "Asks the client's model for a capital.", func(r round) *mcp.CallToolResult {
		if res, ok := r.answers["capital_question"].(*mcp.CreateMessageWithToolsResult); ok && len(res.Content) > 0 {
			return &mcp.CallToolResult{Content: res.Content}
		}
		return asked(mcp.InputRequestMap{"capital_question": prompted("What is the capital of France?", 100)}, "")
	})
	add("test_input_required_result_list_roots", "Asks for the client's roots.", func(r round) *mcp.CallToolResult {
		if res, ok := r.answers["client_roots"].(*mcp.ListRootsResult); ok {
			list, _ := json.Marshal(res.Roots)
			return said("The roots are " + string(list))
		}
		return asked(mcp.InputRequestMap{"client_roots": &mcp.ListRootsParams{}}, "")
	})
}

// addStateful adds the tools that give the client a state to bring back.
func addStateful(add adder) {
	confirm := func(r round) *mcp.CallToolResult {
		if r.state == "confirming" && r.accepted("confirm", "ok") == "true" {
			return said("state-ok: it was confirmed")
		}
		return asked(mcp.InputRequestMap{"confirm": ask("Please confirm", "ok", "boolean")}, "confirming")
	}
	add("test_input_required_result_request_state", "Asks with a state that comes back.", confirm)
	add("test_input_required_result_tampered_state", "Refuses a state that was changed.", confirm)
	add("test_input_required_result_multiple_inputs", "Asks the user, the model and for roots at once.", func(r round) *mcp.CallToolResult {
		name, greeting, roots := r.accepted("user_name", "name"), r.answers["greeting"], r.answers["client_roots"]
		if r.state == "asked" && name != "" && greeting != nil && roots != nil {
			return said("All is there, " + name + ".")
		}
		return asked(mcp.InputRequestMap{
			"user_name":    ask("What is your name?", "name", "string"),
			"greeting":     prompted("Generate a greeting", 50),
			"client_roots": &mcp.ListRootsParams{}, //nolint:staticcheck // as in prompted
		}, "asked")
	})
	add("test_input_required_result_multi_round", "Asks twice, one thing after the other.", func(r round) *mcp.CallToolResult {
		name := r.accepted("step1", "name")
		if past, ok := strings.CutPrefix(r.state, "name:"); ok {
			name = past
		}
		switch color := r.accepted("step2", "color"); {
		case name == "":
			return asked(mcp.InputRequestMap{"step1": ask("Step 1: What is your name?", "name", "string")}, "begun")
		case color == "":
			return asked(mcp.InputRequestMap{"step2": ask("Step 2: What is your favorite color?", "color", "string")}, "name:"+name)
		default:
			return said(name + " likes " + color + ".")
		}
	})
}

// askWithin asks only for input of the capabilities that the client declares in this request.
func askWithin(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
	if len(req.Params.InputResponses) > 0 {
		return said("It was answered."), nil
	}
	can := req.ClientCapabilities()
	requests := mcp.InputRequestMap{}
	if can != nil && can.Elicitation != nil {
		requests["user_name"] = ask("What is your name?", "name", "string")
	}
	//nolint:staticcheck // as in prompted
	if can != nil && can.Sampling != nil {
		requests["greeting"] = prompted("Generate a greeting", 50)
	}
	if len(requests) == 0 {
		return nil, errors.New("the client can do nothing that could be asked for")
	}
	return asked(requests, ""), nil
}
