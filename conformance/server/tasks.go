package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast"
)

// Holdfast makes the tasks: the tools only take long enough.
const (
	taskAfter = 100 * time.Millisecond
	surely    = 5 * taskAfter // takes long enough to be a task
)

const extensionTasks = "io.modelcontextprotocol/tasks"

// options returns options for all revisions of the suite. Calls become tasks soon, as the suite waits
// for each.
func options() *holdfast.Options {
	return &holdfast.Options{TaskAfter: taskAfter, Eras: holdfast.ErasBoth}
}

type greetArgs struct {
	Name string `json:"name"`
}

type computeArgs struct {
	Seconds float64 `json:"seconds"`
	Label   string  `json:"label,omitempty"`
}

type deleteArgs struct {
	Filename string `json:"filename"`
}

const confirmForm = `{"type":"object","properties":{"confirm":{"type":"boolean"},"name":{"type":"string"}}}`

// addTaskTools adds the tools that the suite's scenarios of the tasks extension call.
func addTaskTools(s *mcp.Server) {
	addTool(s, &mcp.Tool{Name: "greet", Description: "Greets at once."},
		func(_ context.Context, _ *mcp.CallToolRequest, in greetArgs) ([]mcp.Content, error) {
			return text("Hello, " + in.Name + "!"), nil
		})
	addTool(s, &mcp.Tool{Name: "slow_compute", Description: "Takes the seconds that it is told to."},
		func(ctx context.Context, _ *mcp.CallToolRequest, in computeArgs) ([]mcp.Content, error) {
			if err := wait(ctx, time.Duration(in.Seconds*float64(time.Second))); err != nil {
				return nil, err
			}
			return text("computed " + in.Label), nil
		})
	addTool(s, &mcp.Tool{Name: "failing_job", Description: "Fails after a second, for clients with tasks only."}, fail)
	addTool(s, &mcp.Tool{Name: "protocol_error_job", Description: "Answers with an error of the protocol."},
		func(ctx context.Context, _ *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
			if err := wait(ctx, surely); err != nil {
				return nil, err
			}
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the job is broken"}
		})
	addTool(s, &mcp.Tool{Name: "confirm_delete", Description: "Asks whether it may delete a file."},
		func(ctx context.Context, req *mcp.CallToolRequest, in deleteArgs) ([]mcp.Content, error) {
			if err := wait(ctx, surely); err != nil {
				return nil, err
			}
			return elicit(ctx, req, "Confirmation: ", "Delete "+in.Filename+"?", confirmForm)
		})
	addTool(s, &mcp.Tool{Name: "multi_input", Description: "Asks two things at a time."}, askTwice)
	addTool(s, &mcp.Tool{Name: "test_tool_with_task", Description: "Asks for a name at once, and takes long after that."},
		func(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
			said, err := elicit(ctx, req, "Hello: ", "What is your name?", confirmForm)
			if err != nil {
				return nil, err
			}
			return said, wait(ctx, surely)
		})
}

// fail fails after a second. It refuses a client without tasks.
func fail(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	if p := req.Session.InitializeParams(); p == nil || p.Capabilities == nil || p.Capabilities.Extensions[extensionTasks] == nil {
		return nil, &jsonrpc.Error{
			Code: -32021, Message: "missing required client capability",
			Data: json.RawMessage(fmt.Sprintf(`{"requiredCapabilities":{"extensions":{%q:{}}}}`, extensionTasks)),
		}
	}
	if err := wait(ctx, time.Second); err != nil {
		return nil, err
	}
	return nil, errors.New("the job has failed")
}

// askTwice sends two requests at a time, once its call is a task.
func askTwice(ctx context.Context, req *mcp.CallToolRequest, _ none) ([]mcp.Content, error) {
	if err := wait(ctx, surely); err != nil {
		return nil, err
	}
	type answer struct {
		content []mcp.Content
		err     error
	}
	second := make(chan answer, 1)
	go func() {
		content, err := elicit(ctx, req, "second: ", "The second?", confirmForm)
		second <- answer{content, err}
	}()
	first, err := elicit(ctx, req, "first: ", "The first?", confirmForm)
	other := <-second
	return append(first, other.content...), errors.Join(err, other.err)
}
