package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"holdfast/internal/terminal"
)

// printRaw prints a result as JSON. A failure of the tool is an error.
func printRaw(result []byte, stdout io.Writer) error {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, result, "", "  "); err != nil {
		return fmt.Errorf("cannot parse the result: %w", err)
	}
	pretty.WriteByte('\n')
	if _, err := pretty.WriteTo(stdout); err != nil {
		return err
	}
	var failed struct {
		IsError bool `json:"isError"`
	}
	if json.Unmarshal(result, &failed) == nil && failed.IsError {
		return codeError{exitError, errPrinted}
	}
	return nil
}

// printResult prints the text of a tool's result on stdout, and a line for each other content
// on stderr. If the tool failed, the text is the error.
func printResult(result []byte, name string, stdout, stderr io.Writer) error {
	var r mcp.CallToolResult
	if err := json.Unmarshal(result, &r); err != nil {
		return fmt.Errorf("cannot parse the result (--json prints it unchanged): %w", err)
	}
	var texts []string
	for _, c := range r.Content {
		text, about := shown(c)
		if about != "" {
			fmt.Fprintln(stderr, about)
		} else {
			texts = append(texts, text)
		}
	}
	if len(texts) == 0 && r.StructuredContent != nil {
		text, err := json.MarshalIndent(r.StructuredContent, "", "  ")
		if err != nil {
			return err
		}
		texts = append(texts, string(text))
	}
	if r.IsError {
		reason := strings.TrimSpace(strings.Join(texts, "\n"))
		if reason == "" {
			reason = "it gives no reason"
		}
		return errors.New(name + " failed: " + reason)
	}
	for _, text := range texts {
		if !strings.HasSuffix(text, "\n") {
			text += "\n"
		}
		if _, err := io.WriteString(stdout, text); err != nil {
			return err
		}
	}
	return nil
}

// shown returns the text of a content, or else a description of it.
func shown(c mcp.Content) (text, about string) {
	switch c := c.(type) {
	case *mcp.TextContent:
		return c.Text, ""
	case *mcp.ImageContent:
		return "", fmt.Sprintf("(an image: %s, %d bytes; --json prints it)", terminal.OneLine(c.MIMEType), len(c.Data))
	case *mcp.AudioContent:
		return "", fmt.Sprintf("(audio: %s, %d bytes; --json prints it)", terminal.OneLine(c.MIMEType), len(c.Data))
	case *mcp.ResourceLink:
		return "", fmt.Sprintf("(a link: %s %s)", terminal.OneLine(c.Name), terminal.OneLine(c.URI))
	case *mcp.EmbeddedResource:
		if c.Resource == nil {
			return "", "(a resource without content)"
		}
		if c.Resource.Blob == nil {
			return c.Resource.Text, ""
		}
		return "", fmt.Sprintf("(a resource: %s, %s, %d bytes; --json prints it)",
			terminal.OneLine(c.Resource.URI), terminal.OneLine(c.Resource.MIMEType), len(c.Resource.Blob))
	}
	return "", "(content of an unknown type; --json prints it)"
}
