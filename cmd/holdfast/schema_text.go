package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// A schemaText writes a JSON schema for a person.
type schemaText struct {
	root    []byte // in which "#/…" is looked for
	out     *strings.Builder
	written int
}

// A schema for a person is bounded: in how deep it goes, and in how many properties it has.
const (
	deepestSchema = 4
	mostSchema    = 500
)

// properties writes the properties of an object. Properties within them have the path before their names.
func (s *schemaText) properties(schema []byte, path string, depth int) {
	schema = s.resolved(schema)
	var required []string
	_ = json.Unmarshal(jsonrpc.Field(schema, "required"), &required) // else none are
	jsonrpc.Each(jsonrpc.Field(schema, "properties"), func(name, one []byte) {
		if s.written++; s.written > mostSchema {
			return
		}
		one = s.resolved(bytes.Clone(one))
		full := path + string(name)
		facts := []string{}
		if kind := s.kind(one, 0); kind != "" {
			facts = append(facts, kind)
		}
		if slices.Contains(required, string(name)) {
			facts = append(facts, "required")
		}
		facts = append(facts, s.bounds(one)...)
		fmt.Fprintf(s.out, "  %s\n", strings.TrimRight(terminal.OneLine(full)+"  "+strings.Join(facts, ", "), " "))
		about := jsonrpc.String(jsonrpc.Field(one, "description"))
		if about == "" {
			about = jsonrpc.String(jsonrpc.Field(one, "title"))
		}
		indented(s.out, "      ", about)
		if depth < deepestSchema {
			s.properties(one, full+".", depth+1)
			if items := s.resolved(jsonrpc.Field(one, "items")); items != nil {
				s.properties(items, full+"[].", depth+1)
			}
		}
	})
}

// resolved follows references within the schema.
func (s *schemaText) resolved(schema []byte) []byte {
	for range 8 { // a circle ends
		path, ok := strings.CutPrefix(jsonrpc.String(jsonrpc.Field(schema, "$ref")), "#/")
		if !ok {
			return schema
		}
		next := jsonrpc.Field(s.root, strings.Split(path, "/")...)
		if next == nil {
			return schema
		}
		schema = next
	}
	return schema
}

// kind returns the type of values.
func (s *schemaText) kind(schema []byte, depth int) string {
	schema = s.resolved(schema)
	if depth > deepestSchema || schema == nil {
		return ""
	}
	if value := jsonrpc.Field(schema, "const"); value != nil {
		return terminal.OneLine(string(value))
	}
	var values []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(schema, "enum"), &values) == nil && len(values) > 0 {
		return "one of " + oneLineList(values)
	}
	var kinds []string
	raw := jsonrpc.Field(schema, "type")
	if json.Unmarshal(raw, &kinds) != nil {
		kinds = nil
		if one := jsonrpc.String(raw); one != "" {
			kinds = []string{one}
		}
	}
	for i, kind := range kinds {
		kinds[i] = terminal.OneLine(kind)
		if kind == "array" {
			if of := s.kind(jsonrpc.Field(schema, "items"), depth+1); of != "" {
				kinds[i] = "array of " + of
			}
		}
	}
	for _, member := range []string{"anyOf", "oneOf", "allOf"} {
		var all []json.RawMessage
		if len(kinds) > 0 || json.Unmarshal(jsonrpc.Field(schema, member), &all) != nil {
			continue
		}
		for _, one := range all {
			if kind := s.kind(one, depth+1); kind != "" && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	if format := jsonrpc.String(jsonrpc.Field(schema, "format")); format != "" && len(kinds) > 0 {
		kinds[0] += " (" + terminal.OneLine(format) + ")"
	}
	return strings.Join(kinds, " or ")
}

// mostValues is how many values of an enumeration are written.
const mostValues = 50

func oneLineList(values []json.RawMessage) string {
	var all []string
	for _, v := range values[:min(len(values), mostValues)] {
		all = append(all, terminal.OneLine(string(v)))
	}
	if more := len(values) - mostValues; more > 0 {
		all = append(all, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(all, ", ")
}

// bounds returns the default and the bounds of values in a schema.
func (s *schemaText) bounds(schema []byte) (facts []string) {
	for _, one := range []struct{ member, text string }{
		{"default", "default %s"},
		{"minimum", "at least %s"}, {"exclusiveMinimum", "more than %s"}, {"maximum", "at most %s"}, {"exclusiveMaximum", "less than %s"}, {"multipleOf", "a multiple of %s"},
		{"minLength", "at least %s characters"}, {"maxLength", "at most %s characters"}, {"pattern", "matches %s"},
		{"minItems", "at least %s items"}, {"maxItems", "at most %s items"},
	} {
		if value := jsonrpc.Field(schema, one.member); value != nil && string(value) != "null" {
			text := string(value)
			if one.member == "pattern" {
				text = jsonrpc.String(value)
			}
			facts = append(facts, fmt.Sprintf(one.text, terminal.OneLine(text)))
		}
	}
	return facts
}
