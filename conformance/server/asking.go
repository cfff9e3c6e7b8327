package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// The forms of the tools, for the client to fill in.
const (
	userForm = `{
		"type": "object",
		"properties": {
			"username": {"type": "string", "description": "User's response"},
			"email": {"type": "string", "description": "User's email address"}
		},
		"required": ["username", "email"]
	}`
	defaultsForm = `{
		"type": "object",
		"properties": {
			"name": {"type": "string", "description": "User name", "default": "John Doe"},
			"age": {"type": "integer", "description": "User age", "default": 30},
			"score": {"type": "number", "description": "User score", "default": 95.5},
			"status": {
				"type": "string", "description": "User status",
				"enum": ["active", "inactive", "pending"], "default": "active"
			},
			"verified": {"type": "boolean", "description": "Verification status", "default": true}
		},
		"required": []
	}`
	enumsForm = `{
		"type": "object",
		"properties": {
			"untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
			"titledSingle": {"type": "string", "oneOf": [
				{"const": "value1", "title": "First Option"},
				{"const": "value2", "title": "Second Option"},
				{"const": "value3", "title": "Third Option"}
			]},
			"legacyEnum": {
				"type": "string", "enum": ["opt1", "opt2", "opt3"],
				"enumNames": ["Option One", "Option Two", "Option Three"]
			},
			"untitledMulti": {"type": "array", "items": {
				"type": "string", "enum": ["option1", "option2", "option3"]
			}},
			"titledMulti": {"type": "array", "items": {"anyOf": [
				{"const": "value1", "title": "First Choice"},
				{"const": "value2", "title": "Second Choice"},
				{"const": "value3", "title": "Third Choice"}
			]}}
		},
		"required": []
	}`
)

type promptArgs struct {
	Prompt string `json:"prompt" jsonschema:"the prompt to send to the model"`
}

type messageArgs struct {
	Message string `json:"message" jsonschema:"the message to show the user"`
}

// addAskingTools adds the tools that send requests to the client.
func addAskingTools(s *mcp.Server) {
	addTool(s, &mcp.Tool{
		Name:        "test_sampling",
		Description: "Asks the client's model, and answers what it said.",
	}, sample)
	addTool(s, &mcp.Tool{
		Name:        "test_elicitation",
		Description: "Asks the user for a name and an address.",
	}, func(ctx context.Context, req *mcp.CallToolRequest, in messageArgs) ([]mcp.Content, error) {
		return elicit(ctx, req, "User response: ", in.Message, userForm)
	})
	addTool(s, &mcp.Tool{
		Name:        "test_elicitation_sep1034_defaults",
		Description: "Asks the user with a default for every type (SEP-1034).",
	}, func(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
		return elicit(ctx, req, "Elicitation completed: ", "Please review and update the form fields with defaults", defaultsForm)
	})
	addTool(s, &mcp.Tool{
		Name:        "test_elicitation_sep1330_enums",
		Description: "Asks the user with every kind of enumeration (SEP-1330).",
	}, func(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
		return elicit(ctx, req, "Elicitation completed: ", "Please select options from the enum fields", enumsForm)
	})
}

//nolint:staticcheck // sampling is deprecated as of 2026-07-28, which this fixture does not speak
func sample(ctx context.Context, req *mcp.CallToolRequest, in promptArgs) ([]mcp.Content, error) {
	res, err := req.Session.CreateMessage(ctx, &mcp.CreateMessageParams{
		Messages: []*mcp.SamplingMessage{
			{Role: "user", Content: &mcp.TextContent{Text: in.Prompt}},
		},
		MaxTokens: 100,
	})
	if err != nil {
		return nil, fmt.Errorf("sampling: %w", err)
	}
	said := "(no text)"
	if t, ok := res.Content.(*mcp.TextContent); ok {
		said = t.Text
	}
	return text("LLM response: " + said), nil
}

// elicit asks the user to fill in a form, and returns the result as text.
func elicit(ctx context.Context, req *mcp.CallToolRequest, prefix, message, form string) ([]mcp.Content, error) {
	res, err := req.Session.Elicit(ctx, &mcp.ElicitParams{
		Message:         message,
		RequestedSchema: json.RawMessage(form),
	})
	if err != nil {
		return nil, fmt.Errorf("elicitation: %w", err)
	}
	content, err := json.Marshal(res.Content)
	if err != nil {
		return nil, fmt.Errorf("elicitation: %w", err)
	}
	return text(fmt.Sprintf("%saction=%s, content=%s", prefix, res.Action, content)), nil
}
