package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// headerSchema has an argument that a header repeats (2026-07-28, Streamable HTTP).
const headerSchema = `{
	"type": "object",
	"properties": {
		"region": {"type": "string", "description": "repeated in Mcp-Param-Region", "x-mcp-header": "Region"},
		"level": {"type": "integer", "description": "repeated nowhere"}
	}
}`

// addPerRequestTools adds the tools for features that revision 2026-07-28 negotiates per request.
func addPerRequestTools(s *mcp.Server) {
	s.AddTool(&mcp.Tool{
		Name:        "test_x_mcp_header",
		Description: "Has an argument that a header repeats.",
		InputSchema: json.RawMessage(headerSchema),
	}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return said("called with " + string(req.Params.Arguments)), nil
	})
	addTool(s, &mcp.Tool{
		Name:        "test_missing_capability",
		Description: "Cannot work for a client without sampling.",
	}, needSampling)
	addTool(s, &mcp.Tool{
		Name:        "test_streaming_elicitation",
		Description: "Asks the user for a name and an address, by a request of its own.",
	}, func(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
		return elicit(ctx, req, "User response: ", "Who are you?", userForm)
	})
	addTool(s, &mcp.Tool{
		Name:        "test_logging_tool",
		Description: "Logs a message while it runs.",
	}, logOnce)
	addTool(s, &mcp.Tool{
		Name:        "test_trigger_tool_change",
		Description: "Changes the list of tools for a moment.",
	}, func(context.Context, *mcp.CallToolRequest, none) ([]mcp.Content, error) {
		addTool(s, &mcp.Tool{Name: "test_passing", Description: "Is there for a moment."},
			func(context.Context, *mcp.CallToolRequest, none) ([]mcp.Content, error) {
				return text("It is there."), nil
			})
		s.RemoveTools("test_passing")
		return text("The list of tools has changed."), nil
	})
	addTool(s, &mcp.Tool{
		Name:        "test_trigger_prompt_change",
		Description: "Changes the list of prompts for a moment.",
	}, func(context.Context, *mcp.CallToolRequest, none) ([]mcp.Content, error) {
		s.AddPrompt(&mcp.Prompt{Name: "test_passing", Description: "Is there for a moment."},
			func(context.Context, *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
				return &mcp.GetPromptResult{}, nil
			})
		s.RemovePrompts("test_passing")
		return text("The list of prompts has changed."), nil
	})
}

// needSampling refuses a client that has not declared sampling, in the request or, as older
// revisions have it, in initialize.
func needSampling(_ context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	//nolint:staticcheck // deprecated as of 2026-07-28, and still there
	if can := req.ClientCapabilities(); can != nil && can.Sampling != nil {
		return text("The client has sampling."), nil
	}
	// The SDK's own type would ask for roots too.
	data := json.RawMessage(`{"requiredCapabilities":{"sampling":{}}}`)
	return nil, &jsonrpc.Error{
		Code: mcp.CodeMissingRequiredClientCapabilities, Message: "the client has not declared sampling", Data: data,
	}
}

func logOnce(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	//nolint:staticcheck // as in logThrice
	if err := req.Session.Log(ctx, &mcp.LoggingMessageParams{Level: "info", Data: "the tool runs"}); err != nil {
		return nil, fmt.Errorf("log: %w", err)
	}
	return text("It was logged, if anybody wants to hear of it."), nil
}
