package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"holdfast/internal/terminal"
	"holdfast/jsonrpc"
)

// maxArguments bounds the arguments of a call that are read from stdin, in bytes.
const maxArguments = 16 << 20

// givenArguments are the arguments of a call as they are given: a JSON object, and NAME=VALUE pairs that are set in it.
type givenArguments struct {
	object string
	pairs  []string
	flags  []string // the values of --arg, which are set after the pairs
	stdin  bool     // an argument is read from stdin
}

// giveArguments takes the words after the tool on the command line, and the values of --arg.
func giveArguments(words, flags []string) (*givenArguments, error) {
	g := &givenArguments{flags: flags}
	for _, word := range words {
		trimmed := strings.TrimSpace(word)
		name, value, pair := strings.Cut(word, "=")
		switch {
		case trimmed == "":
		case trimmed == "-" || strings.ContainsAny(trimmed[:1], "{[@\"") || !pair && g.object == "" && json.Valid([]byte(trimmed)):
			if g.object != "" {
				return nil, usagef("two JSON objects with arguments are given: put all into one")
			}
			g.object = trimmed
			g.readsStdin(trimmed == "-" || trimmed == "@-")
		case !pair || name == "":
			return nil, usagef("argument %q: want NAME=VALUE, or a JSON object like %s", word, `'{"to": 5}'`)
		default:
			g.pairs = append(g.pairs, word)
			g.readsStdin(value == "@-")
		}
	}
	for _, pair := range flags {
		_, value, _ := strings.Cut(pair, "=")
		g.readsStdin(value == "@-")
	}
	return g, nil
}

// arguments returns the arguments of a call: a JSON object, and the values of --arg that are set in it.
func arguments(object string, flags []string, t *tool, stdin io.Reader) (json.RawMessage, error) {
	return (&givenArguments{object: object, flags: flags}).arguments(t, stdin)
}

func (g *givenArguments) readsStdin(does bool) { g.stdin = g.stdin || does }

// contents returns a text, or the content of the file that it names with @. @@ stands for @.
func contents(text string, stdin io.Reader) (string, error) {
	name, ok := strings.CutPrefix(text, "@")
	switch {
	case !ok:
		return text, nil
	case strings.HasPrefix(name, "@"):
		return name, nil
	case name == "":
		return "", usagef("@ has no file: want @FILE, @- for stdin, or @@ for a text that begins with @")
	}
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return "", usagef("@%s: %w (a text that begins with @ is written as @@)", name, err)
		}
		defer func() { _ = f.Close() }()
		stdin = f
	}
	data, err := io.ReadAll(io.LimitReader(stdin, maxArguments+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("read the arguments: %w", err)
	case len(data) > maxArguments:
		return "", usagef("@%s is longer than %d MiB", name, maxArguments>>20)
	case !utf8.Valid(data):
		return "", usagef("@%s is not text (UTF-8): a tool gets other data as base64", name)
	}
	return string(data), nil
}

// arguments returns the arguments of a call as JSON. The schema of the tool gives the type of a value.
func (g *givenArguments) arguments(t *tool, stdin io.Reader) (json.RawMessage, error) {
	args := make(map[string]json.RawMessage)
	object := g.object
	if object == "-" {
		object = "@-"
	}
	object, err := contents(object, stdin)
	if err != nil {
		return nil, err
	}
	if object = strings.TrimSpace(object); object != "" {
		if err := json.Unmarshal([]byte(object), &args); err != nil || args == nil {
			if syntax, ok := errors.AsType[*json.SyntaxError](err); ok {
				return nil, usagef("the arguments are not a JSON object (%w): want one like %s, or --arg to=5", syntax, `'{"to": 5}'`)
			}
			return nil, usagef("the arguments are not a JSON object: want one like %s, or --arg to=5", `'{"to": 5}'`)
		}
	}
	set := func(pair, shown string) error {
		name, text, ok := strings.Cut(pair, "=")
		if !ok || name == "" {
			return usagef("--arg %q: want NAME=VALUE", pair)
		}
		read, err := contents(text, stdin)
		if err != nil {
			return err
		}
		value, err := typed(t, name, read)
		if err != nil {
			return usagef("%s: %w", shown, err)
		}
		args[name] = value
		return nil
	}
	for _, pair := range g.pairs {
		if err := set(pair, pair); err != nil {
			return nil, err
		}
	}
	for _, pair := range g.flags {
		if err := set(pair, "--arg "+pair); err != nil {
			return nil, err
		}
	}
	return json.Marshal(args)
}

// typed returns the JSON value of an argument.
func typed(t *tool, name, text string) (json.RawMessage, error) {
	var kinds []string
	if t != nil {
		schema := t.InputSchema.property(name)
		if schema == nil && string(t.InputSchema.AdditionalProperties) == "false" {
			return nil, fmt.Errorf("%s has no such argument: it has %s", t.Name, signature(t))
		}
		if one := valueOf(schema, text); one != nil {
			return one, nil
		}
		kinds = typesOf(t.InputSchema.raw, schema)
	}
	v, ok := decoded(text)
	want := ""
	for _, kind := range kinds {
		switch kind {
		case "integer", "number", "boolean", "array", "object", "null":
			if ok && fits(v, kind) {
				return json.RawMessage(text), nil
			}
			if kind != "null" && want == "" {
				want = kind
			}
		default: // of several types, the first that fits the value
			return json.Marshal(text)
		}
	}
	switch want {
	case "":
		return json.Marshal(text)
	case "integer":
		return nil, errors.New("want a whole number")
	case "number":
		return nil, errors.New("want a number")
	case "boolean":
		return nil, errors.New("want true or false")
	case "array":
		return nil, errors.New(`want a JSON array, such as ["a", "b"]`)
	}
	return nil, fmt.Errorf("want a JSON %s", want)
}

// decoded decodes a text as JSON. ok is false if it is not JSON.
func decoded(text string) (v any, ok bool) {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	return v, json.Valid([]byte(text)) && d.Decode(&v) == nil
}

// valueOf returns the value of an enumeration that a text stands for, nil if there is none.
func valueOf(schema []byte, text string) json.RawMessage {
	var values []json.RawMessage
	if json.Unmarshal(jsonrpc.Field(schema, "enum"), &values) != nil {
		values = nil
	}
	if one := jsonrpc.Field(schema, "const"); one != nil {
		values = append(values, one)
	}
	for _, one := range values {
		var word string
		if json.Unmarshal(one, &word) == nil && word == text && string(one) != "null" || string(one) == text {
			return bytes.Clone(one)
		}
	}
	return nil
}

// misfit reports whether arguments do not fit the schema of the tool: one is missing, unknown or of another type. The
// server may take them all the same.
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
		schema := t.InputSchema.property(name)
		if schema == nil && string(t.InputSchema.AdditionalProperties) == "false" {
			return true
		}
		v, ok := decoded(string(text))
		kinds := typesOf(t.InputSchema.raw, schema)
		if len(kinds) > 0 && (!ok || !slices.ContainsFunc(kinds, func(kind string) bool { return fits(v, kind) })) {
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
func typeOf(root, schema []byte) string {
	for _, one := range typesOf(root, schema) {
		if one != "null" {
			return one
		}
	}
	return ""
}

// typesOf returns the types in a schema. References are looked for in root.
func typesOf(root, schema []byte) []string {
	var all []string
	add := func(kind string) {
		if kind != "" && !slices.Contains(all, kind) {
			all = append(all, kind)
		}
	}
	s := &schemaText{root: root}
	var within func(schema []byte, depth int)
	within = func(schema []byte, depth int) {
		schema = s.resolved(schema)
		raw := jsonrpc.Field(schema, "type")
		if one := jsonrpc.String(raw); one != "" {
			add(one)
			return
		}
		var several []string
		if json.Unmarshal(raw, &several) == nil && len(several) > 0 {
			for _, one := range several {
				add(one)
			}
			return
		}
		for _, member := range []string{"anyOf", "oneOf", "allOf"} { // generators write an optional number this way
			var some []json.RawMessage
			if raw := jsonrpc.Field(schema, member); depth == 0 || raw == nil || json.Unmarshal(raw, &some) != nil {
				continue
			}
			for _, one := range some {
				within(one, depth-1)
			}
		}
	}
	within(schema, 4)
	return all
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
		if kind := typeOf(t.InputSchema.raw, bytes.Clone(schema)); kind != "" {
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
// tools.
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
