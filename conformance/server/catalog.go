package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

const (
	templatePrefix = "test://template/"
	templateSuffix = "/data"
)

func addResources(s *mcp.Server) {
	fixed := func(r *mcp.Resource, c mcp.ResourceContents) {
		c.URI, c.MIMEType = r.URI, r.MIMEType
		s.AddResource(r, func(context.Context, *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
			return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{&c}}, nil
		})
	}
	fixed(&mcp.Resource{
		URI:         "test://static-text",
		Name:        "Static Text Resource",
		Description: "A text that never changes.",
		MIMEType:    "text/plain",
	}, mcp.ResourceContents{Text: "This is the content of the static text resource."})
	fixed(&mcp.Resource{
		URI:         "test://static-binary",
		Name:        "Static Binary Resource",
		Description: "A picture that never changes.",
		MIMEType:    "image/png",
	}, mcp.ResourceContents{Blob: redPixel()})
	fixed(&mcp.Resource{
		URI:         "test://watched-resource",
		Name:        "Watched Resource",
		Description: "A text that can be subscribed to.",
		MIMEType:    "text/plain",
	}, mcp.ResourceContents{Text: "Watched resource content"})

	s.AddResourceTemplate(&mcp.ResourceTemplate{
		URITemplate: templatePrefix + "{id}" + templateSuffix,
		Name:        "Dynamic Resource Template",
		Description: "A record for any id.",
		MIMEType:    "application/json",
	}, readTemplate)
}

func readTemplate(_ context.Context, req *mcp.ReadResourceRequest) (*mcp.ReadResourceResult, error) {
	uri := req.Params.URI
	id := strings.TrimSuffix(strings.TrimPrefix(uri, templatePrefix), templateSuffix)
	return &mcp.ReadResourceResult{Contents: []*mcp.ResourceContents{{
		URI:      uri,
		MIMEType: "application/json",
		Text:     fmt.Sprintf(`{"id":%q,"templateTest":true,"data":%q}`, id, "Data for ID: "+id),
	}}}, nil
}

func addPrompts(s *mcp.Server) {
	user := func(contents ...mcp.Content) *mcp.GetPromptResult {
		res := &mcp.GetPromptResult{}
		for _, c := range contents {
			res.Messages = append(res.Messages, &mcp.PromptMessage{Role: "user", Content: c})
		}
		return res
	}
	add := func(p *mcp.Prompt, get func(args map[string]string) *mcp.GetPromptResult) {
		s.AddPrompt(p, func(_ context.Context, req *mcp.GetPromptRequest) (*mcp.GetPromptResult, error) {
			return get(req.Params.Arguments), nil
		})
	}
	add(&mcp.Prompt{
		Name:        "test_simple_prompt",
		Description: "A prompt without arguments.",
	}, func(map[string]string) *mcp.GetPromptResult {
		return user(&mcp.TextContent{Text: "This is a simple prompt for testing."})
	})
	add(&mcp.Prompt{
		Name:        "test_prompt_with_arguments",
		Description: "A prompt with two required arguments.",
		Arguments: []*mcp.PromptArgument{
			{Name: "arg1", Description: "First test argument", Required: true},
			{Name: "arg2", Description: "Second test argument", Required: true},
		},
	}, func(args map[string]string) *mcp.GetPromptResult {
		return user(&mcp.TextContent{
			Text: fmt.Sprintf("Prompt with arguments: arg1='%s', arg2='%s'", args["arg1"], args["arg2"]),
		})
	})
	add(&mcp.Prompt{
		Name:        "test_prompt_with_embedded_resource",
		Description: "A prompt that holds a resource.",
		Arguments: []*mcp.PromptArgument{
			{Name: "resourceUri", Description: "URI of the resource to embed", Required: true},
		},
	}, func(args map[string]string) *mcp.GetPromptResult {
		return user(
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
				URI:      args["resourceUri"],
				MIMEType: "text/plain",
				Text:     "Embedded resource content for testing.",
			}},
			&mcp.TextContent{Text: "Please process the embedded resource above."},
		)
	})
	add(&mcp.Prompt{
		Name:        "test_prompt_with_image",
		Description: "A prompt that holds an image.",
	}, func(map[string]string) *mcp.GetPromptResult {
		return user(
			&mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"},
			&mcp.TextContent{Text: "Please analyze the image above."},
		)
	})
}

// complete returns the values that begin with the argument.
func complete(_ context.Context, req *mcp.CompleteRequest) (*mcp.CompleteResult, error) {
	values := []string{}
	if ref := req.Params.Ref; ref != nil && ref.Name == "test_prompt_with_arguments" {
		for _, v := range []string{"paris", "park", "party"} {
			if strings.HasPrefix(v, req.Params.Argument.Value) {
				values = append(values, v)
			}
		}
	}
	return &mcp.CompleteResult{Completion: mcp.CompletionResultDetails{Values: values, Total: len(values)}}, nil
}
