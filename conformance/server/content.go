package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"image"
	"image/color"
	"image/png"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// schema202012 must reach clients in tools/list as it stands here (SEP-1613, SEP-2106): no code
// between the server and the client may drop unknown keywords.
const schema202012 = `{
	"$schema": "https://json-schema.org/draft/2020-12/schema",
	"type": "object",
	"$defs": {
		"address": {
			"$anchor": "addressDef",
			"type": "object",
			"properties": {"street": {"type": "string"}, "city": {"type": "string"}}
		}
	},
	"properties": {
		"name": {"type": "string"},
		"address": {"$ref": "#/$defs/address"},
		"contactMethod": {"type": "string", "enum": ["phone", "email"]},
		"phone": {"type": "string"},
		"email": {"type": "string"}
	},
	"allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
	"if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
	"then": {"required": ["phone"]},
	"else": {"required": ["email"]},
	"additionalProperties": false
}`

// addContentTools adds the tools that answer at once. Those that succeed are marked read-only, so
// that the suite tests Holdfast's light calls too: calls of all other tools are stored streams from
// the start.
func addContentTools(s *mcp.Server) {
	fixed := func(name, description string, content ...mcp.Content) {
		addTool(s, &mcp.Tool{
			Name:        name,
			Description: description,
			Annotations: &mcp.ToolAnnotations{ReadOnlyHint: true},
		}, func(context.Context, *mcp.CallToolRequest, none) ([]mcp.Content, error) {
			return content, nil
		})
	}
	picture := &mcp.ImageContent{Data: redPixel(), MIMEType: "image/png"}

	fixed("test_simple_text", "Answers with one text.",
		&mcp.TextContent{Text: "This is a simple text response for testing."})
	fixed("test_image_content", "Answers with an image.", picture)
	fixed("test_audio_content", "Answers with audio.",
		&mcp.AudioContent{Data: silence(), MIMEType: "audio/wav"})
	fixed("test_embedded_resource", "Answers with an embedded resource.",
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
			URI:      "test://embedded-resource",
			MIMEType: "text/plain",
			Text:     "This is an embedded resource content.",
		}})
	fixed("test_multiple_content_types", "Answers with a text, an image and a resource.",
		&mcp.TextContent{Text: "Multiple content types test:"},
		picture,
		&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{
			URI:      "test://mixed-content-resource",
			MIMEType: "application/json",
			Text:     `{"test":"data","value":123}`,
		}})

	addTool(s, &mcp.Tool{
		Name:        "test_error_handling",
		Description: "Always fails, with a result that says so.",
	}, func(context.Context, *mcp.CallToolRequest, none) ([]mcp.Content, error) {
		return nil, errors.New("this tool intentionally returns an error for testing")
	})

	// Registered without typed arguments, for which the SDK would rewrite the schema.
	s.AddTool(&mcp.Tool{
		Name:        "json_schema_2020_12_tool",
		Description: "Has an input schema with JSON Schema 2020-12 keywords.",
		InputSchema: json.RawMessage(schema202012),
	}, func(_ context.Context, req *mcp.CallToolRequest) (*mcp.CallToolResult, error) {
		return &mcp.CallToolResult{Content: text("called with " + string(req.Params.Arguments))}, nil
	})
}

// redPixel returns a PNG of one pixel.
func redPixel() []byte {
	img := image.NewRGBA(image.Rect(0, 0, 1, 1))
	img.Set(0, 0, color.RGBA{R: 0xff, A: 0xff})
	var b bytes.Buffer
	if err := png.Encode(&b, img); err != nil {
		panic(err) // a bytes.Buffer returns no errors
	}
	return b.Bytes()
}

// silence returns a WAV file of one millisecond, 8 kHz, 8 bits, mono.
func silence() []byte {
	const rate, samples = 8000, 8
	b := append(make([]byte, 0, 44+samples), "RIFF"...)
	b = binary.LittleEndian.AppendUint32(b, 36+samples)
	b = append(b, "WAVEfmt "...)
	b = binary.LittleEndian.AppendUint32(b, 16)   // of this chunk
	b = binary.LittleEndian.AppendUint16(b, 1)    // PCM
	b = binary.LittleEndian.AppendUint16(b, 1)    // channel
	b = binary.LittleEndian.AppendUint32(b, rate) // samples a second
	b = binary.LittleEndian.AppendUint32(b, rate) // bytes a second
	b = binary.LittleEndian.AppendUint16(b, 1)    // bytes a sample
	b = binary.LittleEndian.AppendUint16(b, 8)    // bits a sample
	b = append(b, "data"...)
	b = binary.LittleEndian.AppendUint32(b, samples)
	for range samples {
		b = append(b, 0x80) // the middle of an unsigned sample
	}
	return b
}
