package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// An object is a JSON object with members that keep their order. Their values are objects, []string, or
// other values that [json.Marshal] takes.
type object []pair

type pair struct {
	name  string
	value any
}

// style is the style in which a file is written.
type style struct {
	newline, unit string // unit is one step of indentation
	compact       bool   // in one line
	space         string // after colons and commas in one line
}

// styleOf returns the style of a text.
func styleOf(text string, root *hujson.Object) style {
	s := style{newline: "\n", unit: "  ", space: " "}
	if i := strings.IndexByte(text, '\n'); i > 0 && text[i-1] == '\r' {
		s.newline = "\r\n"
	}
	if root == nil || len(root.Members) == 0 {
		return s
	}
	first := &root.Members[0]
	if !strings.Contains(text[:first.Name.StartOffset], "\n") {
		s.compact = !strings.Contains(text[first.Name.StartOffset:root.Members[len(root.Members)-1].Value.EndOffset], "\n")
		if s.compact && text[first.Name.EndOffset:first.Value.StartOffset] == ":" {
			s.space = ""
		}
	}
	if in, own := indentAt(text, first.Name.StartOffset); own && in != "" {
		s.unit = in
	}
	return s
}

// indentAt returns the indentation of the line that a place is in, and whether the place follows it directly.
func indentAt(text string, at int) (indent string, own bool) {
	line := text[strings.LastIndexByte(text[:at], '\n')+1 : at]
	rest := strings.TrimLeft(line, " \t")
	return line[:len(line)-len(rest)], rest == ""
}

// quoted returns a string as JSON, in which < and & stay as they are.
func quoted(v any) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return "null" // not for strings and bools
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// render returns a value as text. Its lines but the first begin with indent.
func (s style) render(v any, indent string) string {
	switch v := v.(type) {
	case object:
		if len(v) == 0 {
			return "{}"
		}
		var all []string
		for _, p := range v {
			all = append(all, s.member(p.name, p.value, indent+s.unit))
		}
		if s.compact {
			return "{" + strings.Join(all, ","+s.space) + "}"
		}
		in := s.newline + indent + s.unit
		return "{" + in + strings.Join(all, ","+in) + s.newline + indent + "}"
	case []string:
		var all []string
		for _, one := range v {
			all = append(all, quoted(one))
		}
		return "[" + strings.Join(all, ","+s.space) + "]"
	}
	return quoted(v)
}

func (s style) member(name string, value any, indent string) string {
	return quoted(name) + ":" + s.space + s.render(value, indent)
}

// An edit replaces a part of a text.
type edit struct {
	from, to int
	text     string
}

// apply returns a text with edits, which are in the order of their places.
func apply(text string, edits ...edit) string {
	var b strings.Builder
	at := 0
	for _, e := range edits {
		b.WriteString(text[at:e.from])
		b.WriteString(e.text)
		at = e.to
	}
	b.WriteString(text[at:])
	return b.String()
}

// A jsonFile is the text of a file, as JSON with comments and trailing commas.
type jsonFile struct {
	file, text string
	root       hujson.Value
	section    []string
}

// parseJSON parses the text of a file.
func parseJSON(file, text string, section []string) (*jsonFile, error) {
	j := &jsonFile{file: file, text: text, section: section}
	if strings.TrimSpace(text) == "" {
		return j, nil
	}
	var err error
	if j.root, err = hujson.Parse([]byte(text)); err != nil {
		said := strings.TrimPrefix(err.Error(), "hujson: ")
		place := file
		line, column := 0, 0
		if n, _ := fmt.Sscanf(said, "line %d, column %d: ", &line, &column); n == 2 {
			place = fmt.Sprintf("%s:%d:%d", file, line, column)
			_, said, _ = strings.Cut(said, ": ")
		}
		if cause := errors.Unwrap(err); cause != nil {
			said = cause.Error()
		}
		return nil, fmt.Errorf("%s: not JSON: %s: correct it first. Nothing was written", place, said)
	}
	if _, ok := j.root.Value.(*hujson.Object); !ok {
		return nil, j.failf(j.root.StartOffset, "the file holds no object: want {…}")
	}
	return j, nil
}

// failf returns an error at a place.
func (j *jsonFile) failf(at int, format string, args ...any) error {
	before := j.text[:at]
	return fmt.Errorf("%s:%d:%d: %s. Nothing was written", j.file, strings.Count(before, "\n")+1, len(before)-strings.LastIndexByte(before, '\n'), fmt.Sprintf(format, args...))
}

// member returns the member of a name, or nil.
func (j *jsonFile) member(o *hujson.Object, name string) (*hujson.ObjectMember, error) {
	var found *hujson.ObjectMember
	for i := range o.Members {
		m := &o.Members[i]
		if m.Name.Value.(hujson.Literal).String() != name {
			continue
		}
		if found != nil {
			return nil, j.failf(m.Name.StartOffset, "%q is there twice: remove one", name)
		}
		found = m
	}
	return found, nil
}

// at returns the object that is deepest on the way to the servers, and the members that are missing from there on. parents has
// the objects on the way.
func (j *jsonFile) at() (o *hujson.Object, parents []*hujson.Object, missing []string, err error) {
	o, _ = j.root.Value.(*hujson.Object)
	for i, name := range j.section {
		m, err := j.member(o, name)
		if err != nil {
			return nil, nil, nil, err
		}
		if m == nil {
			return o, parents, j.section[i:], nil
		}
		sub, ok := m.Value.Value.(*hujson.Object)
		if !ok {
			return nil, nil, nil, j.failf(m.Value.StartOffset, "%q is no object: want {…}, or remove it", name)
		}
		parents = append(parents, o)
		o = sub
	}
	return o, parents, nil, nil
}

// get returns the member of a server, or nil.
func (j *jsonFile) get(name string) (*hujson.ObjectMember, error) {
	if j.root.Value == nil {
		return nil, nil
	}
	o, _, missing, err := j.at()
	if err != nil || missing != nil {
		return nil, err
	}
	return j.member(o, name)
}

// names returns the names of all servers.
func (j *jsonFile) names() (all []string) {
	if j.root.Value == nil {
		return nil
	}
	o, _, missing, err := j.at()
	if err != nil || missing != nil {
		return nil
	}
	for i := range o.Members {
		all = append(all, o.Members[i].Name.Value.(hujson.Literal).String())
	}
	return all
}

// add returns the text with a server. A server of the same name is replaced.
func (j *jsonFile) add(name string, value any) (string, error) {
	root, _ := j.root.Value.(*hujson.Object)
	s := styleOf(j.text, root)
	if root == nil {
		o := object{{name, value}}
		for i := range j.section {
			o = object{{j.section[len(j.section)-1-i], o}}
		}
		return s.render(o, "") + s.newline, nil
	}
	o, _, missing, err := j.at()
	if err != nil {
		return "", err
	}
	for i := range missing {
		value, name = object{{name, value}}, missing[len(missing)-1-i]
	}
	if m, err := j.member(o, name); err != nil {
		return "", err
	} else if m != nil {
		indent, _ := indentAt(j.text, m.Name.StartOffset)
		s.compact = s.compact || !strings.Contains(j.text[m.Value.StartOffset:m.Value.EndOffset], "\n") && inOneLine(o)
		return apply(j.text, edit{m.Value.StartOffset, m.Value.EndOffset, s.render(value, indent)}), nil
	}
	return j.insert(o, s, name, value), nil
}

// inOneLine reports whether an object begins without a line of its own for its first member.
func inOneLine(o *hujson.Object) bool {
	return len(o.Members) > 0 && !strings.Contains(string(o.Members[0].Name.BeforeExtra), "\n")
}

// sameLine returns how much of an extra belongs to the line in which it begins: all of it, if it has no line break outside
// comments.
func sameLine(extra string) int {
	for i := 0; i < len(extra); {
		switch rest := extra[i:]; {
		case strings.HasPrefix(rest, "\r\n"), rest[0] == '\n':
			return len(strings.TrimRight(extra[:i], " \t"))
		case strings.HasPrefix(rest, "//"):
			n := strings.IndexByte(rest, '\n')
			if n < 0 {
				return len(extra)
			}
			return len(strings.TrimRight(extra[:i+n], "\r"))
		case strings.HasPrefix(rest, "/*"):
			i += strings.Index(rest[2:], "*/") + 4
		default:
			i++
		}
	}
	return len(extra)
}

// insert returns the text with a member at the end of an object.
func (j *jsonFile) insert(o *hujson.Object, s style, name string, value any) string {
	if len(o.Members) == 0 {
		open, close := j.braces(o)
		indent, _ := indentAt(j.text, open)
		inner := j.text[open+1 : close]
		if s.compact {
			return apply(j.text, edit{close, close, s.member(name, value, "")})
		}
		head := sameLine(inner)
		if strings.TrimSpace(inner) == "" {
			head = 0
		}
		tail := ""
		if !strings.Contains(inner[head:], "\n") {
			tail = s.newline + indent
		}
		from := open + 1 + len(strings.TrimRight(inner[:head], " \t"))
		to := from
		if tail != "" && strings.TrimSpace(inner[head:]) == "" {
			to = close
		}
		return apply(j.text, edit{from, to, s.newline + indent + s.unit + s.member(name, value, indent+s.unit) + tail})
	}
	last := &o.Members[len(o.Members)-1].Value
	if inOneLine(o) {
		s.compact = true
		return apply(j.text, edit{last.EndOffset, last.EndOffset, "," + s.space + s.member(name, value, "")})
	}
	indent, own := indentAt(j.text, o.Members[len(o.Members)-1].Name.StartOffset)
	if !own {
		indent, _ = indentAt(j.text, o.Members[0].Name.StartOffset)
	}
	s.unit = unitOf(j.text, o, indent, s.unit)
	line := s.newline + indent + s.member(name, value, indent)
	if trailingComma(o) {
		comma := last.EndOffset + len(last.AfterExtra) + 1
		at := comma + sameLine(string(o.AfterExtra))
		return apply(j.text, edit{at, at, line + ","})
	}
	// The extra is before the closing brace.
	at := last.EndOffset + sameLine(string(o.AfterExtra))
	return apply(j.text, edit{last.EndOffset, last.EndOffset, ","}, edit{at, at, line})
}

// unitOf returns one step of indentation, from that of the members of an object and of their own members.
func unitOf(text string, o *hujson.Object, indent, other string) string {
	for i := range o.Members {
		sub, ok := o.Members[i].Value.Value.(*hujson.Object)
		if !ok || len(sub.Members) == 0 {
			continue
		}
		in, own := indentAt(text, sub.Members[0].Name.StartOffset)
		if rest, ok := strings.CutPrefix(in, indent); own && ok && rest != "" {
			return rest
		}
	}
	return other
}

// trailingComma reports whether a comma follows the last member of an object.
func trailingComma(o *hujson.Object) bool { return o.Members[len(o.Members)-1].Value.AfterExtra != nil }

// braces returns the places of the braces of an object without members.
func (j *jsonFile) braces(o *hujson.Object) (open, close int) {
	for v := range j.root.All() {
		if v.Value == hujson.ValueTrimmed(o) {
			return v.StartOffset, v.EndOffset - 1
		}
	}
	return 0, 0 // not of this file
}

// remove returns the text without a server. If keep is false, an object that has no other servers goes, too.
func (j *jsonFile) remove(name string, keep bool) (string, error) {
	o, parents, _, err := j.at()
	if err != nil {
		return "", err
	}
	path := append([]string{}, j.section...)
	for !keep && len(o.Members) == 1 && len(parents) > 0 && len(bytes.TrimSpace(o.AfterExtra)) == 0 &&
		len(bytes.TrimSpace(o.Members[0].Name.BeforeExtra)) == 0 && !j.commented(parents[len(parents)-1], path[len(path)-1]) {
		name, path = path[len(path)-1], path[:len(path)-1]
		o, parents = parents[len(parents)-1], parents[:len(parents)-1]
	}
	for i := range o.Members {
		if o.Members[i].Name.Value.(hujson.Literal).String() == name {
			return j.cut(o, i), nil
		}
	}
	return j.text, nil
}

// commented reports whether a comment belongs to a member of an object, and would go with it.
func (j *jsonFile) commented(o *hujson.Object, name string) bool {
	for i := range o.Members {
		m := &o.Members[i]
		if m.Name.Value.(hujson.Literal).String() != name {
			continue
		}
		var after string
		if _, own := indentAt(j.text, m.Name.StartOffset); !own {
			after = "" // the text after the member stays in the line
		} else if i+1 < len(o.Members) {
			after = string(o.Members[i+1].Name.BeforeExtra)
		} else {
			after = string(o.AfterExtra)
		}
		return strings.TrimSpace(string(m.Name.AfterExtra)+string(m.Value.BeforeExtra)+string(m.Value.AfterExtra)+after[:sameLine(after)]) != ""
	}
	return false
}

// cut returns the text without a member.
func (j *jsonFile) cut(o *hujson.Object, i int) string {
	m := &o.Members[i]
	last := i == len(o.Members)-1
	from, to := m.Name.StartOffset, m.Value.EndOffset
	_, own := indentAt(j.text, from)
	if own = own && strings.Contains(string(m.Name.BeforeExtra), "\n"); own {
		from = strings.LastIndexByte(j.text[:from], '\n')
		if from > 0 && j.text[from-1] == '\r' {
			from--
		}
	}
	after := string(o.AfterExtra)
	comma := !last || trailingComma(o)
	if comma {
		to += len(m.Value.AfterExtra) + 1
		if !last {
			after = string(o.Members[i+1].Name.BeforeExtra)
		}
	}
	if own {
		to += sameLine(after)
	} else if !last { // the next member stands where this one stood
		to += len(after) - len(strings.TrimLeft(after, " \t"))
	}
	var edits []edit
	if last && i > 0 {
		before := &o.Members[i-1].Value
		at := before.EndOffset + len(before.AfterExtra)
		switch {
		case !comma && own:
			edits = append(edits, edit{at, at + 1, ""})
		case !comma:
			from = at
		case !own && len(bytes.TrimSpace(m.Name.BeforeExtra)) == 0: // the comma before it goes, and that after it stays
			from, to = at, m.Value.EndOffset
		}
	}
	edits = append(edits, edit{from, to, ""})
	if len(o.Members) == 1 {
		open := m.Name.StartOffset - len(m.Name.BeforeExtra)
		end := m.Value.EndOffset + len(o.AfterExtra)
		if comma {
			end += len(m.Value.AfterExtra) + 1
		}
		if strings.TrimSpace(j.text[open:from]+j.text[to:end]) == "" {
			edits = []edit{{open, end, ""}}
		}
	}
	return apply(j.text, edits...)
}

// same reports whether two values are the same but for how they are written.
func same(a, b string) bool {
	var both [2]any
	for i, text := range []string{a, b} {
		plain, err := hujson.Standardize([]byte(text))
		if err != nil || json.Unmarshal(plain, &both[i]) != nil {
			return false
		}
	}
	return reflect.DeepEqual(both[0], both[1])
}

// valueOf returns a value that a file has, for [style.render].
func valueOf(v *hujson.Value) any {
	switch v := v.Value.(type) {
	case *hujson.Object:
		o := object{}
		for i := range v.Members {
			o = append(o, pair{v.Members[i].Name.Value.(hujson.Literal).String(), valueOf(&v.Members[i].Value)})
		}
		return o
	case *hujson.Array:
		var all []string
		for i := range v.Elements {
			l, ok := v.Elements[i].Value.(hujson.Literal)
			if !ok || l.Kind() != '"' {
				return nil
			}
			all = append(all, l.String())
		}
		return all
	case hujson.Literal:
		return json.RawMessage(slices.Clone(v))
	}
	return nil
}
