package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// maxArguments bounds the arguments of a call that are read from stdin, in bytes.
const maxArguments = 16 << 20

// arguments returns the arguments of a call: a JSON object, and NAME=VALUE pairs that are set
// in it. The schema of the tool gives the type of a value. If object is "-", it is read from
// stdin.
func arguments(object string, pairs []string, t *tool, stdin io.Reader) (json.RawMessage, error) {
	args := make(map[string]json.RawMessage)
	if object == "-" {
		data, err := io.ReadAll(io.LimitReader(stdin, maxArguments))
		if err != nil {
			return nil, fmt.Errorf("read the arguments: %w", err)
		}
		object = string(data)
	}
	if object = strings.TrimSpace(object); object != "" {
		if err := json.Unmarshal([]byte(object), &args); err != nil || args == nil {
			name, _, pair := strings.Cut(object, "=")
			var syntax *json.SyntaxError
			switch {
			case pair && !strings.ContainsAny(name, "{[\"' "):
				return nil, usagef("the arguments are not a JSON object: did you mean --arg %s=VALUE?", name)
			case errors.As(err, &syntax):
				return nil, usagef("the arguments are not a JSON object (%w): want one like %s, or --arg to=5", syntax, `'{"to": 5}'`)
			}
			return nil, usagef("the arguments are not a JSON object: want one like %s, or --arg to=5", `'{"to": 5}'`)
		}
	}
	for _, pair := range pairs {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return nil, usagef("--arg %q: want NAME=VALUE", pair)
		}
		value, err := typed(t, name, text)
		if err != nil {
			return nil, usagef("--arg %s: %w", pair, err)
		}
		args[name] = value
	}
	return json.Marshal(args)
}

// typed returns the JSON value of an argument.
func typed(t *tool, name, text string) (json.RawMessage, error) {
	want := ""
	if t != nil {
		schema := jsonrpc.Field(t.InputSchema.Properties, name)
		if schema == nil && string(t.InputSchema.AdditionalProperties) == "false" {
			return nil, fmt.Errorf("%s has no such argument: it has %s", t.Name, signature(t))
		}
		want = typeOf(schema)
	}
	switch want {
	case "integer", "number", "boolean", "array", "object":
	default:
		return json.Marshal(text)
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var v any
	if json.Valid([]byte(text)) && d.Decode(&v) == nil && fits(v, want) {
		return json.RawMessage(text), nil
	}
	switch want {
	case "integer":
		return nil, errors.New("want a whole number")
	case "number":
		return nil, errors.New("want a number")
	case "boolean":
		return nil, errors.New("want true or false")
	}
	return nil, fmt.Errorf("want a JSON %s", want)
}

// misfit reports whether arguments are not as the schema of the tool says: one is missing, unknown or of another type.
// The server may take them all the same.
func misfit(t *tool, given json.RawMessage) bool {
	args := make(map[string]json.RawMessage)
	if t == nil || json.Unmarshal(given, &args) != nil {
		return false
	}
	for _, name := range t.InputSchema.Required {
		if args[name] == nil {
			return true
		}
	}
	for name, text := range args {
		schema := jsonrpc.Field(t.InputSchema.Properties, name)
		if schema == nil && string(t.InputSchema.AdditionalProperties) == "false" {
			return true
		}
		var v any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if want := typeOf(schema); want != "" && (d.Decode(&v) != nil || !fits(v, want)) {
			return true
		}
	}
	return false
}

// fits reports whether a JSON value has a type.
func fits(v any, want string) bool {
	switch v := v.(type) {
	case json.Number:
		return want == "number" || want == "integer" && !strings.ContainsAny(v.String(), ".eE")
	case bool:
		return want == "boolean"
	case string:
		return want == "string"
	case nil:
		return want == "null"
	case []any:
		return want == "array"
	case map[string]any:
		return want == "object"
	}
	return false
}

// typeOf returns the type in a schema: of several, the first that is not null.
func typeOf(schema []byte) string {
	raw := jsonrpc.Field(schema, "type")
	if one := jsonrpc.String(raw); one != "" {
		return one
	}
	var several []string
	_ = json.Unmarshal(raw, &several)
	for _, one := range several {
		if one != "null" {
			return one
		}
	}
	return ""
}

// signature returns the arguments of a tool as NAME:TYPE, in brackets if optional.
func signature(t *tool) string {
	var all []string
	required := make(map[string]bool, len(t.InputSchema.Required)) // a server may list very many
	for _, name := range t.InputSchema.Required {
		required[name] = true
	}
	jsonrpc.Each(t.InputSchema.Properties, func(name, schema []byte) {
		one := string(name)
		if kind := typeOf(bytes.Clone(schema)); kind != "" {
			one += ":" + kind
		}
		if !required[string(name)] {
			one = "[" + one + "]"
		}
		all = append(all, terminal.OneLine(one))
	})
	return strings.Join(all, " ")
}

// unknownTool returns the error for a tool that the server does not have. It names similar
// ones.
func unknownTool(name string, list []tool) error {
	type near struct {
		name string
		far  int
	}
	var all []near
	for _, t := range list {
		far := distance(strings.ToLower(name), strings.ToLower(t.Name))
		if strings.Contains(strings.ToLower(t.Name), strings.ToLower(name)) {
			far = 0
		}
		if far <= max(len(name), len(t.Name))/2 {
			all = append(all, near{t.Name, far})
		}
	}
	slices.SortStableFunc(all, func(a, b near) int { return a.far - b.far })
	switch {
	case len(list) == 0:
		return fmt.Errorf("unknown tool %q: the server has no tools", name)
	case len(all) == 0:
		return fmt.Errorf("unknown tool %q: 'holdfast tools' lists the %d of the server", name, len(list))
	}
	var found []string
	for _, n := range all[:min(3, len(all))] {
		found = append(found, n.name)
	}
	return fmt.Errorf("unknown tool %q: did you mean %s?", name, strings.Join(found, " or "))
}
