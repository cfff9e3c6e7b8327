package main

import (
	"context"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// newServer returns an official server with all tools, resources and prompts of the suite.
func newServer() *mcp.Server {
	s := mcp.NewServer(
		&mcp.Implementation{Name: "holdfast-conformance", Version: "1.0.0"},
		&mcp.ServerOptions{
			CompletionHandler:  complete,
			SubscribeHandler:   func(context.Context, *mcp.SubscribeRequest) error { return nil },
			UnsubscribeHandler: func(context.Context, *mcp.UnsubscribeRequest) error { return nil },
		},
	)
	addContentTools(s)
	addTalkingTools(s)
	addAskingTools(s)
	addTaskTools(s)
	addRounds(s)
	addPerRequestTools(s)
	addResources(s)
	addPrompts(s)
	return s
}

// none is the type of the arguments of a tool without arguments.
type none struct{}

// addTool registers a tool that answers with the content that call returns. The SDK makes an error
// a result with isError.
func addTool[In any](s *mcp.Server, t *mcp.Tool, call func(context.Context, *mcp.CallToolRequest, In) ([]mcp.Content, error)) {
	mcp.AddTool(s, t, func(ctx context.Context, req *mcp.CallToolRequest, in In) (*mcp.CallToolResult, any, error) {
		content, err := call(ctx, req, in)
		if err != nil {
			return nil, nil, err
		}
		return &mcp.CallToolResult{Content: content}, nil, nil
	})
}

// text returns content of one text.
func text(s string) []mcp.Content {
	return []mcp.Content{&mcp.TextContent{Text: s}}
}
