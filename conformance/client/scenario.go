package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A scenario is the client's part of a scenario of the suite.
type scenario struct {
	options    *mcp.ClientOptions
	authorized bool // the client needs a token
	play       func(context.Context, *mcp.ClientSession) error
	// playWith replaces play for a scenario that has instructions in its context, config.
	playWith func(ctx context.Context, s *mcp.ClientSession, config string) error
	// refusal is a text, or several with | between them, of which one is in the error if the client
	// refuses to connect; "": it must connect.
	refusal string
}

var scenarios = map[string]scenario{
	"initialize": {play: list},
	"tools_call": {play: func(ctx context.Context, s *mcp.ClientSession) error {
		return call(ctx, s, "add_numbers", map[string]any{"a": 5, "b": 3}, "is 8")
	}},
	// The client must fill in the defaults of a form that its user has left empty.
	"elicitation-sep1034-client-defaults": {
		options: &mcp.ClientOptions{
			ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
				return &mcp.ElicitResult{Action: "accept", Content: map[string]any{}}, nil
			},
		},
		play: func(ctx context.Context, s *mcp.ClientSession) error {
			return call(ctx, s, "test_client_elicitation_defaults", nil, "John Doe")
		},
	},
	// The server ends the stream before it has answered, and says when to connect again.
	"sse-retry": {play: func(ctx context.Context, s *mcp.ClientSession) error {
		return call(ctx, s, "test_reconnection", nil, "completed successfully")
	}},
	"json-schema-2020-12-preservation": {play: echoSchema},
	// Scenarios of revision 2026-07-28.
	"request-metadata": {options: handlers(map[string]any{}), play: list},
	"sep-2322-client-request-state": {
		options: handlers(map[string]any{"confirmed": true}),
		play: func(ctx context.Context, s *mcp.ClientSession) error {
			for _, tool := range []string{"test_mrtr_echo_state", "test_mrtr_no_state", "test_mrtr_unrelated", "test_mrtr_no_result_type"} {
				if err := call(ctx, s, tool, nil, ""); err != nil {
					return err
				}
			}
			return nil
		},
	},
	"http-standard-headers":     {play: oneOfEach},
	"http-custom-headers":       {playWith: givenCalls},
	"http-invalid-tool-headers": {play: everyTool},
	"json-schema-ref-no-deref":  {play: list},
	// The server wants more scope whatever token it gets. A modern client connects with
	// server/discover; the official client then tries initialize.
	"auth/scope-retry-limit": {authorized: true, play: refused, refusal: "Missing MCP-Protocol-Version"},
	// Here the client must not trust the authorization server.
	"auth/iss-normalized":           {authorized: true, play: connected, refusal: "does not match expected issuer"},
	"auth/iss-supported-missing":    {authorized: true, play: connected, refusal: "none was received"},
	"auth/iss-unexpected":           {authorized: true, play: connected, refusal: "does not match expected issuer"},
	"auth/iss-wrong-issuer":         {authorized: true, play: connected, refusal: "does not match expected issuer"},
	"auth/metadata-issuer-mismatch": {authorized: true, play: connected, refusal: "does not match issuer URL"},
	"auth/resource-mismatch":        {authorized: true, play: connected, refusal: "failed to register client|not of this server"},
}

// refuses reports whether err is the refusal that the scenario wants.
func (s scenario) refuses(err error) bool {
	for one := range strings.SplitSeq(s.refusal, "|") {
		if one != "" && strings.Contains(err.Error(), one) {
			return true
		}
	}
	return false
}

// find returns the scenario of a name. Scenarios of authorization differ in their servers: the
// client's part is the same in nearly all.
func find(name string) (scenario, bool) {
	s, ok := scenarios[name]
	if !ok && strings.HasPrefix(name, "auth/") {
		return scenario{authorized: true, play: func(ctx context.Context, s *mcp.ClientSession) error {
			return call(ctx, s, "test-tool", nil, "test")
		}}, true
	}
	return s, ok
}

// handlers returns the options of a client that has all capabilities, and accepts each form with the
// same content.
func handlers(content map[string]any) *mcp.ClientOptions {
	return &mcp.ClientOptions{
		ElicitationHandler: func(context.Context, *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
			return &mcp.ElicitResult{Action: "accept", Content: content}, nil
		},
		Capabilities: &mcp.ClientCapabilities{
			//nolint:staticcheck // deprecated as of 2026-07-28, and still there
			RootsV2: &mcp.RootCapabilities{}, Sampling: &mcp.SamplingCapabilities{}, // the suite does not use them
		},
	}
}

// oneOfEach uses the first tool, resource and prompt that the server lists.
func oneOfEach(ctx context.Context, s *mcp.ClientSession) error {
	listed, err := s.ListTools(ctx, nil)
	if err != nil {
		return fmt.Errorf("list tools: %w", err)
	}
	if _, err := s.CallTool(ctx, &mcp.CallToolParams{Name: listed.Tools[0].Name, Arguments: map[string]any{}}); err != nil {
		return fmt.Errorf("call: %w", err)
	}
	resources, err := s.ListResources(ctx, nil)
	if err != nil {
		return fmt.Errorf("list resources: %w", err)
	}
	for _, r := range resources.Resources {
		if _, err := s.ReadResource(ctx, &mcp.ReadResourceParams{URI: r.URI}); err != nil {
			return fmt.Errorf("read: %w", err)
		}
	}
	prompts, err := s.ListPrompts(ctx, nil)
	if err != nil {
		return fmt.Errorf("list prompts: %w", err)
	}
	if _, err := s.GetPrompt(ctx, &mcp.GetPromptParams{Name: prompts.Prompts[0].Name}); err != nil {
		return fmt.Errorf("get prompt: %w", err)
	}
	return nil
}

// givenCalls makes the calls in the scenario's context.
func givenCalls(ctx context.Context, s *mcp.ClientSession, config string) error {
	var given struct {
		ToolCalls []struct {
			Name      string         `json:"name"`
			Arguments map[string]any `json:"arguments"`
		} `json:"toolCalls"`
	}
	if err := json.Unmarshal([]byte(config), &given); err != nil {
		return fmt.Errorf("context: %w", err)
	}
	if len(given.ToolCalls) == 0 {
		return errors.New("the context has no calls")
	}
	for _, one := range given.ToolCalls {
		if err := call(ctx, s, one.Name, one.Arguments, ""); err != nil {
			return err
		}
	}
	return nil
}

// everyTool calls each tool that is listed. The server counts calls of tools that must not be called.
func everyTool(ctx context.Context, s *mcp.ClientSession) error {
	listed, err := tools(ctx, s)
	if err != nil {
		return err
	}
	if len(listed) != 1 {
		return fmt.Errorf("%d tools are listed, want the valid one", len(listed))
	}
	for name := range listed {
		if err := call(ctx, s, name, map[string]any{"region": "us-west1"}, ""); err != nil {
			return err
		}
	}
	return nil
}

func list(ctx context.Context, s *mcp.ClientSession) error {
	_, err := tools(ctx, s)
	return err
}

// tools returns the server's tools by name.
func tools(ctx context.Context, s *mcp.ClientSession) (map[string]*mcp.Tool, error) {
	byName := make(map[string]*mcp.Tool)
	for tool, err := range s.Tools(ctx, nil) {
		if err != nil {
			return nil, fmt.Errorf("list tools: %w", err)
		}
		byName[tool.Name] = tool
	}
	return byName, nil
}

// call calls a tool that the server lists, and returns an error unless the answer is a text with want
// in it.
func call(ctx context.Context, s *mcp.ClientSession, name string, args map[string]any, want string) error {
	listed, err := tools(ctx, s)
	if err != nil {
		return err
	}
	if listed[name] == nil {
		return fmt.Errorf("there is no tool %s among %d", name, len(listed))
	}
	if args == nil {
		args = map[string]any{}
	}
	res, err := s.CallTool(ctx, &mcp.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		return fmt.Errorf("call %s: %w", name, err)
	}
	var said strings.Builder
	for _, c := range res.Content {
		if text, ok := c.(*mcp.TextContent); ok {
			said.WriteString(text.Text)
		}
	}
	if res.IsError || !strings.Contains(said.String(), want) {
		return fmt.Errorf("call %s: answered %q (isError %v), want %q in it", name, said.String(), res.IsError, want)
	}
	return nil
}

// echoSchema sends a tool's input schema back as it came.
func echoSchema(ctx context.Context, s *mcp.ClientSession) error {
	listed, err := tools(ctx, s)
	if err != nil {
		return err
	}
	const described = "json_schema_2020_12_tool"
	tool := listed[described]
	if tool == nil {
		return fmt.Errorf("there is no tool %s among %d", described, len(listed))
	}
	return call(ctx, s, "json_schema_echo", map[string]any{"schema": tool.InputSchema}, "")
}

// connected returns an error: the client should not have connected.
func connected(context.Context, *mcp.ClientSession) error {
	return errors.New("the client has connected, and should not")
}

// refused returns an error unless the server refuses to list tools, and the client returns that error
// rather than ask the user for consent for ever.
func refused(ctx context.Context, s *mcp.ClientSession) error {
	_, err := tools(ctx, s)
	switch {
	case err == nil:
		return errors.New("the tools were listed, want a refusal")
	case ctx.Err() != nil:
		return fmt.Errorf("no end: %w", err)
	case !strings.Contains(err.Error(), "Forbidden") && !strings.Contains(err.Error(), "HTTP 403"):
		return fmt.Errorf("want an error that says that it is forbidden: %w", err)
	}
	return nil
}
