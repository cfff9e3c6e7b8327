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

// mostArguments bounds the arguments of a call that are read from stdin, in bytes.
const mostArguments = 16 << 20

// arguments makes the arguments of a call: a JSON object, into which each of the
// pairs (name=value) is set. What a value is the tool's schema says.
func arguments(object string, pairs []string, t *tool, stdin io.Reader) (json.RawMessage, error) {
	args := make(map[string]json.RawMessage)
	if object == "-" {
		data, err := io.ReadAll(io.LimitReader(stdin, mostArguments))
		if err != nil {
			return nil, fmt.Errorf("read the arguments: %w", err)
		}
		object = string(data)
	}
	if object = strings.TrimSpace(object); object != "" {
		if err := json.Unmarshal([]byte(object), &args); err != nil || args == nil {
			return nil, usagef("the arguments are no JSON object: want one like %s, or --arg to=5", `'{"to": 5}'`)
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

// typed makes a value of what was given for an argument.
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

// fits says whether a JSON value is of a type.
func fits(v any, want string) bool {
	switch v := v.(type) {
	case json.Number:
		return want == "number" || want == "integer" && !strings.ContainsAny(v.String(), ".eE")
	case bool:
		return want == "boolean"
	case []any:
		return want == "array"
	case map[string]any:
		return want == "object"
	}
	return false
}

// typeOf is the type that a schema asks for: of several the first that is not null.
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

// signature shows a tool's arguments: NAME:TYPE, in brackets where it may be left
// out.
func signature(t *tool) string {
	var all []string
	required := make(map[string]bool, len(t.InputSchema.Required)) // the server may say any number
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

// unknownTool says which tools have names like the one that is not there.
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
		return fmt.Errorf("there is no tool %q: the server has none", name)
	case len(all) == 0:
		return fmt.Errorf("there is no tool %q: 'holdfast tools' lists the %d that there are", name, len(list))
	}
	var found []string
	for _, n := range all[:min(3, len(all))] {
		found = append(found, n.name)
	}
	return fmt.Errorf("there is no tool %q: did you mean %s?", name, strings.Join(found, " or "))
}

// distance is how many letters must be changed, added or dropped to make one word
// of another (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			next := min(row[j]+1, row[j+1]+1, before+cost)
			before, row[j+1] = row[j+1], next
		}
	}
	return row[len(b)]
}
