package main

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

// The suite itself needs Node and runs in CI (conformance/run.sh). This test shows
// on a clean clone that the fixture is complete, and that the official client
// reaches it through Holdfast's handler.
func TestFixture(t *testing.T) {
	ctx := t.Context()
	fixture := newServer()
	handler := holdfast.NewHandler(func(*http.Request) *mcp.Server { return fixture }, options())
	server := httptest.NewServer(handler)
	defer server.Close()
	defer func() { _ = handler.Shutdown(ctx) }()
	client := mcp.NewClient(&mcp.Implementation{Name: "test", Version: "1"}, &mcp.ClientOptions{
		//nolint:staticcheck // as in sample
		CreateMessageHandler: func(context.Context, *mcp.CreateMessageRequest) (*mcp.CreateMessageResult, error) {
			//nolint:staticcheck // as in sample
			return &mcp.CreateMessageResult{Model: "m", Role: "assistant", Content: &mcp.TextContent{Text: "four"}}, nil
		},
		ElicitationHandler: fillIn,
	})
	cs, err := client.Connect(ctx, &mcp.StreamableClientTransport{Endpoint: server.URL}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cs.Close() }()

	res, err := cs.ListTools(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"json_schema_2020_12_tool", "test_audio_content", "test_elicitation", "test_elicitation_sep1034_defaults",
		"test_elicitation_sep1330_enums", "test_embedded_resource", "test_error_handling", "test_image_content",
		"test_input_required_result_capabilities", "test_input_required_result_elicitation",
		"test_input_required_result_list_roots", "test_input_required_result_multi_round",
		"test_input_required_result_multiple_inputs", "test_input_required_result_request_state",
		"test_input_required_result_sampling", "test_input_required_result_tampered_state",
		"test_logging_tool", "test_missing_capability",
		"test_multiple_content_types", "test_reconnection", "test_sampling", "test_simple_text",
		"test_streaming_elicitation", "test_tool_with_logging", "test_tool_with_progress",
		"test_trigger_prompt_change", "test_trigger_tool_change", "test_x_mcp_header",
	}
	var names []string
	for _, tool := range res.Tools {
		names = append(names, tool.Name)
		if tool.Description == "" {
			t.Errorf("%s has no description", tool.Name)
		}
		if tool.Name == "json_schema_2020_12_tool" {
			checkSchema(t, tool.InputSchema)
			continue
		}
		if slices.Contains(taskTools, tool.Name) {
			continue
		}
		checkCall(ctx, t, cs, tool.Name)
	}
	slices.Sort(names)
	want = append(want, taskTools...)
	slices.Sort(want)
	if !slices.Equal(names, want) {
		t.Errorf("tools are %q, want %q", names, want)
	}
}

// fillIn accepts a form, with a value in each required field.
func fillIn(_ context.Context, req *mcp.ElicitRequest) (*mcp.ElicitResult, error) {
	var form struct {
		Properties map[string]struct {
			Type string `json:"type"`
		} `json:"properties"`
		Required []string `json:"required"`
	}
	raw, err := json.Marshal(req.Params.RequestedSchema)
	if err == nil {
		err = json.Unmarshal(raw, &form)
	}
	filled := make(map[string]any)
	for _, name := range form.Required {
		switch form.Properties[name].Type {
		case "string":
			filled[name] = "something"
		case "boolean":
			filled[name] = true
		}
	}
	return &mcp.ElicitResult{Action: "accept", Content: filled}, err
}

// checkSchema checks that every keyword comes back as it was written.
func checkSchema(t *testing.T, got any) {
	var want any
	if err := json.Unmarshal([]byte(schema202012), &want); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("input schema is %v, want %v", got, want)
	}
}

func checkCall(ctx context.Context, t *testing.T, cs *mcp.ClientSession, tool string) {
	args := map[string]map[string]any{
		"test_sampling":    {"prompt": "2+2"},
		"test_elicitation": {"message": "who?"},
	}
	fails := tool == "test_error_handling"
	res, err := cs.CallTool(ctx, &mcp.CallToolParams{Name: tool, Arguments: args[tool]})
	if err != nil {
		t.Errorf("%s: %v", tool, err)
		return
	}
	if len(res.Content) == 0 || res.IsError != fails {
		t.Errorf("%s: isError %v with %d contents: %v", tool, res.IsError, len(res.Content), res.Content[0].(*mcp.TextContent).Text)
	}
}
