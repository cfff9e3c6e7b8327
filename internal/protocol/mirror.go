package protocol

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"holdfast/jsonrpc"
)

// This file has the headers that repeat parts of a request's body (2026-07-28, Streamable HTTP,
// "Request Metadata"), for the side that sets them and the side that checks them.

// NameOf returns the name in a request's params that the header Mcp-Name repeats, or "". In
// requests of the tasks extension it is the task's id.
func NameOf(method string, params []byte) string {
	field := NameField(method)
	if field == "" {
		return ""
	}
	return jsonrpc.String(jsonrpc.Field(params, field))
}

// Rename changes the tool or prompt that a request calls. at is the path of its name in the params.
func Rename(m *jsonrpc.Message, name string, at ...string) {
	m.Params, _ = jsonrpc.Set(m.Params, jsonrpc.Quote(name), at...)
	m.Raw = jsonrpc.AppendRequest(nil, m.ID, m.Method, m.Params)
}

// CompletesPrompt reports whether the params of a completion/complete are about an argument of a prompt. A reference to a resource has
// no name, or null or an empty text for it.
func CompletesPrompt(params []byte) bool {
	ref := jsonrpc.Field(params, "ref")
	return jsonrpc.String(jsonrpc.Field(ref, "type")) == "ref/prompt" || jsonrpc.String(jsonrpc.Field(ref, "name")) != ""
}

// UnknownName returns the error for a request if no server has its tool or prompt.
func UnknownName(method, name string) *jsonrpc.Error {
	kind := "prompt"
	if method == MethodCallTool {
		kind = "tool"
	}
	return jsonrpc.Errorf(jsonrpc.CodeInvalidParams, "Unknown %s: %s", kind, name)
}

// HasName reports whether the header Mcp-Name repeats a member of a method's params.
func HasName(method string) bool { return NameField(method) != "" }

// NameField returns the member of a method's params that the header Mcp-Name repeats, or "".
func NameField(method string) string {
	switch method {
	case MethodCallTool, MethodGetPrompt:
		return "name"
	case MethodReadResource:
		return "uri"
	case MethodTaskGet, MethodTaskUpdate, MethodTaskCancel:
		return "taskId"
	}
	return ""
}

// The sentinel of a header value that is coded as Base64 ("Value Encoding").
const (
	codedFrom = "=?base64?"
	codedTo   = "?="
)

// EncodeHeader returns a text as the value of Mcp-Name or Mcp-Param-*: coded if a header can't hold
// the plain text, or if the text looks as if it were coded.
func EncodeHeader(text string) string {
	plain := strings.Trim(text, " \t") == text && (!strings.HasPrefix(text, codedFrom) || !strings.HasSuffix(text, codedTo))
	for i := 0; i < len(text) && plain; i++ {
		plain = text[i] >= ' ' && text[i] < 0x7f || text[i] == '\t'
	}
	if plain {
		return text
	}
	return codedFrom + base64.StdEncoding.EncodeToString([]byte(text)) + codedTo
}

// DecodeHeader returns the text of a value that [EncodeHeader] has made. It reports false for a
// value that no client may send.
func DecodeHeader(value string) (text string, ok bool) {
	coded, ok := strings.CutPrefix(value, codedFrom)
	if ok {
		coded, ok = strings.CutSuffix(coded, codedTo)
	}
	if !ok {
		return value, EncodeHeader(value) == value
	}
	data, err := base64.StdEncoding.DecodeString(coded)
	return string(data), err == nil
}

// A ParamHeader is an argument of a tool that a header repeats: its schema has x-mcp-header.
type ParamHeader struct {
	Name string   // of the header, without [HeaderParam]
	Path []string // of the argument: names of nested properties
}

// xMCPHeader is the annotation of a property's schema.
const xMCPHeader = "x-mcp-header"

// ParamHeaders returns the annotated arguments in a tool's inputSchema. An error says why
// the tool's definition is invalid: clients must not show such a tool (2026-07-28, Tools,
// "x-mcp-header").
func ParamHeaders(schema []byte) ([]ParamHeader, error) {
	if !strings.Contains(string(schema), xMCPHeader) {
		return nil, nil // searching is cheaper than parsing
	}
	s := headerScan{seen: make(map[string]bool), room: manyReadings*len(schema) + shortReading}
	s.schema(schema, nil, true)
	return s.found, s.err
}

// A headerScan looks for annotations in a schema.
type headerScan struct {
	found []ParamHeader
	seen  map[string]bool // names, in lower case
	err   error           // the first
	depth int             // of the current schema
	room  int             // how many bytes may still be read
}

// deepest is how deep a schema may be nested: each level is read once more. To bound the work for a
// large schema, the scan reads no more than shortReading bytes and manyReadings times the schema.
const (
	deepest      = 100
	manyReadings = 16
	shortReading = 4 << 20
)

// fail notes the error of an invalid schema, unless it has one.
func (s *headerScan) fail(path []string, format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("%s of %q: %w", xMCPHeader, strings.Join(path, "."), fmt.Errorf(format, args...))
	}
}

// schema scans a schema. direct says that only keys "properties" lead to it.
func (s *headerScan) schema(raw []byte, path []string, direct bool) {
	if len(raw) == 0 || raw[0] != '{' {
		return
	}
	s.depth++
	defer func() { s.depth-- }()
	if s.room -= len(raw); s.depth > deepest || s.room < 0 {
		s.fail(path, "the schema is nested deeper than %d levels, or too large for its depth", deepest)
		return
	}
	var annotation, typ []byte
	jsonrpc.Each(raw, func(key, value []byte) {
		switch string(key) {
		case xMCPHeader:
			annotation = value
		case "type":
			typ = value
		case "properties", "patternProperties", "$defs", "definitions", "dependentSchemas":
			direct := direct && string(key) == "properties"
			jsonrpc.Each(value, func(name, sub []byte) {
				s.schema(sub, append(path[:len(path):len(path)], string(name)), direct)
			})
		case "const", "default", "enum", "examples": // values, and no schemas
		default:
			s.others(value, path)
		}
	})
	if annotation != nil {
		s.annotation(annotation, typ, path, direct)
	}
}

// others scans the schemas in another keyword's value, which must not have annotations.
func (s *headerScan) others(value []byte, path []string) {
	if len(value) == 0 || value[0] != '[' {
		s.schema(value, path, false)
		return
	}
	for _, sub := range elements(value) {
		s.schema(sub, path, false)
	}
}

// annotation checks an annotation, and notes it.
func (s *headerScan) annotation(value, typ []byte, path []string, direct bool) {
	name := jsonrpc.String(value)
	lower := strings.ToLower(name)
	switch {
	case !direct || len(path) == 0:
		s.fail(path, "it is not on a property that only properties lead to")
	case !isToken(name):
		s.fail(path, "%.40q is no name of a header", value)
	case s.seen[lower]:
		s.fail(path, "another one has the name %q", name)
	case !primitive(typ):
		s.fail(path, "the type is not string, integer or boolean, but %.40s", typ)
	default:
		s.seen[lower] = true
		s.found = append(s.found, ParamHeader{Name: name, Path: path})
	}
}

// primitive reports whether a schema's type may be annotated: it is one primitive type, alone or beside null.
func primitive(typ []byte) bool {
	n := 0
	one := func(raw []byte) {
		switch jsonrpc.String(raw) {
		case "string", "integer", "boolean":
			n++
		case "null":
		default:
			n = 2
		}
	}
	if len(typ) == 0 || typ[0] != '[' {
		one(typ)
	}
	for _, raw := range elements(typ) {
		one(raw)
	}
	return n == 1
}

// elements returns the elements of an array; nil if raw is not an array.
func elements(raw []byte) (list []json.RawMessage) {
	if len(raw) == 0 || raw[0] != '[' || json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// isToken reports whether a text is a token (RFC 9110, section 5.6.2).
func isToken(text string) bool {
	for i := range len(text) {
		c := text[i] | 0x20
		if (c < 'a' || c > 'z') && (text[i] < '0' || text[i] > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(text[i])) {
			return false
		}
	}
	return text != ""
}

// Arguments returns the arguments of a call that headers repeat, in the order of the headers: nil for an
// absent argument. It reads each object of the arguments once, for any number of headers.
func Arguments(headers []ParamHeader, arguments []byte) [][]byte {
	found, all := make([][]byte, len(headers)), make([]int, len(headers))
	for i := range all {
		all[i] = i
	}
	findArguments(headers, all, 0, arguments, found)
	return found
}

// findArguments finds the arguments of some headers in an object, which is at depth at of their paths.
func findArguments(headers []ParamHeader, some []int, at int, object []byte, found [][]byte) {
	values := make(map[string][]byte, len(some))
	for _, i := range some {
		values[headers[i].Path[at]] = nil
	}
	if !jsonrpc.Each(object, func(name, value []byte) {
		if _, wanted := values[string(name)]; wanted {
			values[string(name)] = value
		}
	}) {
		return
	}
	deeper := make(map[string][]int)
	for _, i := range some {
		name := headers[i].Path[at]
		if len(headers[i].Path) == at+1 {
			found[i] = values[name]
		} else if values[name] != nil {
			deeper[name] = append(deeper[name], i)
		}
	}
	for name, some := range deeper {
		findArguments(headers, some, at+1, values[name], found)
	}
}

// Value returns the header's value for an argument of a call, which is nil if it is absent. It reports
// false if the header must be absent.
func (h ParamHeader) Value(argument []byte) (value string, ok bool) {
	text, err := ParamText(argument)
	return EncodeHeader(text), err == nil
}

// Check returns an error unless the header's values in a request repeat the request's argument, which is
// nil if it is absent (2026-07-28, Streamable HTTP, "Server Behavior for Custom Headers", "Server
// Validation").
func (h ParamHeader) Check(values []string, raw []byte) error {
	want, err := ParamText(raw)
	switch absent := err != nil; {
	case absent && len(values) == 0:
		return nil
	case absent:
		return fmt.Errorf("the header %s%s is there, and its argument %s is not", HeaderParam, h.Name, strings.Join(h.Path, "."))
	case len(values) != 1:
		return fmt.Errorf("the header %s%s is missing: it must repeat the argument %s", HeaderParam, h.Name, strings.Join(h.Path, "."))
	}
	got, ok := DecodeHeader(values[0])
	if !ok || got != want && !sameNumber(raw, got) {
		return fmt.Errorf("the header %s%s says %.100q, and the argument %s is %.100q", HeaderParam, h.Name, values[0], strings.Join(h.Path, "."), want)
	}
	return nil
}

// sameNumber reports whether an argument is a number, and a header has the same number.
func sameNumber(raw []byte, text string) bool {
	if raw[0] != '-' && (raw[0] < '0' || raw[0] > '9') {
		return false
	}
	a, err1 := strconv.ParseFloat(string(raw), 64)
	b, err2 := strconv.ParseFloat(text, 64)
	return err1 == nil && err2 == nil && a == b
}

var errNoText = errors.New("no header repeats it")

// ParamText returns the text of an argument, given as JSON, as a header repeats it, before [EncodeHeader].
func ParamText(raw []byte) (string, error) {
	switch {
	case len(raw) == 0:
		return "", errNoText
	case raw[0] == '"':
		return jsonrpc.String(raw), nil
	case string(raw) == "true", string(raw) == "false":
		return string(raw), nil
	}
	n, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || n != math.Trunc(n) || math.Abs(n) > 1<<53-1 {
		return "", errNoText
	}
	return strconv.FormatFloat(n, 'f', 0, 64), nil
}
