package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// A scenario is what the client does for one of the suite's.
type scenario struct {
	options    *mcp.ClientOptions
	authorized bool // it needs a token
	play       func(context.Context, *mcp.ClientSession) error
}

var scenarios = map[string]scenario{
	"initialize": {play: list},
	"tools_call": {play: func(ctx context.Context, s *mcp.ClientSession) error {
		return call(ctx, s, "add_numbers", map[string]any{"a": 5, "b": 3}, "is 8")
	}},
	// The client is to fill in the defaults of a form that its user left empty.
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
	// The server ends the stream before it has answered, and says when to come back.
	"sse-retry": {play: func(ctx context.Context, s *mcp.ClientSession) error {
		return call(ctx, s, "test_reconnection", nil, "completed successfully")
	}},
	"json-schema-2020-12-preservation": {play: echoSchema},
	// The server wants more scope whatever token it gets.
	"auth/scope-retry-limit": {authorized: true, play: refused},
}

// find returns the scenario of that name. Those of authorization differ in what
// the servers do: the client's part is the same in nearly all.
func find(name string) (scenario, bool) {
	s, ok := scenarios[name]
	if !ok && strings.HasPrefix(name, "auth/") {
		return scenario{authorized: true, play: func(ctx context.Context, s *mcp.ClientSession) error {
			return call(ctx, s, "test-tool", nil, "test")
		}}, true
	}
	return s, ok
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

// call calls a tool that the server lists, and wants its answer to be a text with
// want in it.
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

// refused wants the server to refuse, and the client to say so rather than to ask
// the user for consent for ever.
func refused(ctx context.Context, s *mcp.ClientSession) error {
	_, err := tools(ctx, s)
	switch {
	case err == nil:
		return errors.New("the tools were listed, want a refusal")
	case ctx.Err() != nil:
		return fmt.Errorf("no end: %w", err)
	case !strings.Contains(err.Error(), "Forbidden"):
		return fmt.Errorf("want an error that says Forbidden: %w", err)
	}
	return nil
}
