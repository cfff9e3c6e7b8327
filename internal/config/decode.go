package config

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailscale/hujson"

	"holdfast/internal/limit"
)

// An Error is a mistake in a file, and what to do about it.
type Error struct {
	File         string
	Line, Column int // from 1; columns are bytes
	Text         string

	at int // the offset of the mistake; 0: it is about the file
}

// Error returns "FILE:LINE:COLUMN: TEXT".
func (e *Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Values with their place in the file.
type (
	// text is a string.
	text struct {
		at    int
		value string
	}
	duration struct {
		at    int
		value time.Duration
	}
	count struct {
		at    int
		value int
	}
	// rate is a number of calls a second.
	rate struct {
		at    int
		value float64
	}
	// named is an object with members that the user named.
	named[T any]  []member[T]
	member[T any] struct {
		At    int
		Name  string
		Value T
	}
)

// decoder reads a file into the types of schema.go.
type decoder struct {
	file    string
	data    []byte
	ignored []Ignored
	errs    []error
	spans   []span
}

// A span is the part of the file with a server, or with settings for it.
type span struct {
	server   string
	from, to int // offsets
}

// ofServers removes the mistakes in the spans of servers from errs, and returns them by the servers' names: a wrong entry
// costs only that entry.
func (d *decoder) ofServers(known func(server string) bool) map[string][]error {
	all := make(map[string][]error)
	d.errs = slices.DeleteFunc(d.errs, func(err error) bool {
		var e *Error
		if !errors.As(err, &e) || e.at == 0 {
			return false
		}
		i := slices.IndexFunc(d.spans, func(s span) bool { return s.from <= e.at && e.at < s.to && known(s.server) })
		if i >= 0 {
			all[d.spans[i].server] = append(all[d.spans[i].server], err)
		}
		return i >= 0
	})
	return all
}

// place returns line and column of an offset.
func (d *decoder) place(at int) (line, column int) {
	before := d.data[:min(at, len(d.data))]
	return bytes.Count(before, []byte("\n")) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// placeOf returns the place of an offset.
func (d *decoder) placeOf(at int) Place {
	line, column := d.place(at)
	return Place{d.file, line, column}
}

// errorf returns an error at the place.
func (p Place) errorf(format string, args ...any) *Error {
	return &Error{File: p.File, Line: p.Line, Column: p.Column, Text: fmt.Sprintf(format, args...)}
}

// failf notes a mistake.
func (d *decoder) failf(at int, format string, args ...any) {
	line, column := d.place(at)
	d.errs = append(d.errs, &Error{File: d.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...), at: at})
}

// decode reads the whole file into v, which is a pointer.
func (d *decoder) decode(v any) {
	root, err := hujson.Parse(d.data)
	if err != nil {
		d.errs = append(d.errs, d.syntax(err))
		return
	}
	if _, ok := root.Value.(*hujson.Object); !ok {
		d.failf(root.StartOffset, `the file must hold an object: {"mcpServers": {…}}`)
		return
	}
	d.value(&root, reflect.ValueOf(v).Elem(), "")
}

// syntax returns the error of a file that is no JSON, with the place that hujson gives.
func (d *decoder) syntax(err error) error {
	e := &Error{File: d.file, Text: strings.TrimPrefix(err.Error(), "hujson: ")}
	if n, _ := fmt.Sscanf(e.Text, "line %d, column %d: ", &e.Line, &e.Column); n == 2 {
		_, e.Text, _ = strings.Cut(e.Text, ": ")
	}
	if cause := errors.Unwrap(err); cause != nil {
		e.Text = cause.Error()
	}
	e.Text = "not JSON (comments and trailing commas are allowed): " + d.mistake(e.Text)
	return e
}

// mistake returns the parser's text about a mistake in JSON, or one of ours where the parser's says less or quotes a
// value, which may be a secret.
func (d *decoder) mistake(text string) string {
	start := bytes.TrimLeft(d.data, " \t\r\n")
	word, isLiteral := strings.CutPrefix(text, "invalid literal: ")
	switch {
	case len(start) == 0:
		return `the file is empty: want {"mcpServers": {"NAME": {"command": "…"}}}`
	case start[0] == '<':
		return "it is a page of the web: save the file itself"
	case strings.HasSuffix(text, "unexpected EOF"):
		return "the file ends too early: is a } or a ] missing, or a part of the file?"
	case strings.HasPrefix(word, `"`) && strings.Contains(word, `\`):
		return `a string has a \ that stands for nothing: write \\ for each, as in "C:\\dir\\program.exe"`
	case strings.HasPrefix(word, `"`):
		return "a string has a character that JSON does not have there, such as the end of a line"
	case isLiteral:
		return `a name or a text has no quotes: write it as "…"`
	case strings.HasPrefix(text, `invalid character '\''`):
		return `a text is in single quotes: write it as "…"`
	case strings.HasPrefix(text, `invalid character '"' after`):
		return text + ": is a comma missing before it?"
	}
	return text
}

// value reads a value into v. path names the value.
func (d *decoder) value(from *hujson.Value, v reflect.Value, path string) {
	if v.Kind() == reflect.Pointer {
		if v.CanSet() {
			v.Set(reflect.New(v.Type().Elem()))
		}
		v = v.Elem()
	}
	switch to := v.Addr().Interface().(type) {
	case *text:
		to.at = from.StartOffset
		if l, ok := literal(from, '"'); ok {
			to.value = l.String()
		} else if l, ok := literal(from, '0'); ok && mayBeNumber.MatchString(path) {
			to.value = string(l)
		} else {
			d.wrong(from, path, "a string")
		}
	case *hostCommand:
		switch from.Value.(type) {
		case *hujson.Object:
			d.composite(from, v, path)
			to.text = to.Path
		case *hujson.Array:
			d.composite(from, reflect.ValueOf(&to.Args).Elem(), path)
			if len(to.Args) > 0 {
				to.text, to.Args = to.Args[0], to.Args[1:]
			}
		default:
			d.value(from, reflect.ValueOf(&to.text), path)
		}
	case *hostTools:
		d.tools(from, to, path)
	case *hostSwitches:
		d.switches(from, to)
	case *loose:
		to.at = from.StartOffset
		if l, ok := literal(from, '0'); ok {
			to.number = l.Float()
		}
	case *bool:
		l, ok := from.Value.(hujson.Literal)
		if !ok || l.Kind() != 't' && l.Kind() != 'f' {
			d.wrong(from, path, "true or false")
			return
		}
		*to = l.Bool()
	case *duration:
		to.at = from.StartOffset
		l, ok := literal(from, '"')
		if to.value, ok = parseDuration(l.String(), ok); !ok {
			d.unfit(from, '"', path, `a duration like "30s" or "10m"`)
		}
	case *count:
		to.at = from.StartOffset
		l, ok := from.Value.(hujson.Literal)
		n, err := strconv.Atoi(string(l))
		if !ok || err != nil || n < 1 {
			d.unfit(from, '0', path, "a whole number of 1 or more")
		}
		to.value = n
	case *rate:
		to.at = from.StartOffset
		l, ok := literal(from, '"')
		var err error
		if to.value, err = limit.ParseRate(l.String()); !ok || err != nil {
			d.unfit(from, '"', path, `a rate like "50/s", "600/m" or "10/h"`)
		}
	case *authSettings:
		if _, ok := literal(from, '"'); ok {
			to.Upstream = &upstreamAuth{}
			d.value(from, reflect.ValueOf(to.Upstream), path)
			return
		}
		d.composite(from, v, path)
	case *upstreamAuth:
		to.at = from.StartOffset
		l, ok := literal(from, '"')
		switch to.passthrough = ok && l.String() == "passthrough"; {
		case to.passthrough:
		case ok:
			d.failf(to.at, `%s is another string than "passthrough": want that, or an object`, path)
		default:
			d.composite(from, v, path)
		}
	case *tokenRequest:
		to.at = from.StartOffset
		d.composite(from, v, path)
	default:
		d.composite(from, v, path)
	}
}

// mayBeNumber matches the paths of strings for which hosts also take numbers.
var mayBeNumber = regexp.MustCompile(`\.(args|options)\[[0-9]+\]$|\.(env|environment|headers)\.|\.(command|command\.path|default)$`)

func literal(from *hujson.Value, kind hujson.Kind) (l hujson.Literal, ok bool) {
	l, ok = from.Value.(hujson.Literal)
	if !ok || l.Kind() != kind {
		return hujson.Literal(`""`), false
	}
	return l, true
}

func parseDuration(s string, ok bool) (time.Duration, bool) {
	v, err := time.ParseDuration(s)
	return v, ok && err == nil && v > 0
}

// composite reads an array, or an object.
func (d *decoder) composite(from *hujson.Value, v reflect.Value, path string) {
	if isNamed(v.Type()) {
		d.members(from, v, path)
		return
	}
	if v.Kind() == reflect.Slice {
		list, ok := from.Value.(*hujson.Array)
		if !ok {
			d.wrong(from, path, "an array")
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), 0, len(list.Elements)))
		for i := range list.Elements {
			one := reflect.New(v.Type().Elem()).Elem()
			d.value(&list.Elements[i], one, fmt.Sprintf("%s[%d]", path, i))
			v.Set(reflect.Append(v, one))
		}
		return
	}
	all, ok := from.Value.(*hujson.Object)
	if !ok {
		d.wrong(from, path, "an object")
		return
	}
	seen := make(map[string]bool)
	for i := range all.Members {
		m := &all.Members[i]
		name := m.Name.Value.(hujson.Literal).String()
		sub := join(path, name)
		field, known := fieldOf(v, name)
		switch {
		case !known && v.Type() == reflect.TypeFor[hostMCP]() && isServer(&m.Value):
			others := v.Addr().Interface().(*hostMCP)
			others.others = append(others.others, member[hostServer]{At: m.Name.StartOffset, Name: name})
			d.value(&m.Value, reflect.ValueOf(&others.others[len(others.others)-1].Value).Elem(), sub)
			continue
		case !known && isOurs(v.Type()):
			d.failf(m.Name.StartOffset, "there is no setting %s: want one of %s", sub, strings.Join(settingsOf(v.Type()), ", "))
			continue
		case !known:
			d.ignored = append(d.ignored, Ignored{d.placeOf(m.Name.StartOffset), sub})
			continue
		case seen[name]:
			d.failf(m.Name.StartOffset, "%s is there twice: remove one", sub)
			continue
		}
		seen[name] = true
		if l, ok := m.Value.Value.(hujson.Literal); ok && l.Kind() == 'n' {
			continue // null counts as absent
		}
		d.value(&m.Value, field, sub)
	}
}

// isOurs reports whether a type is of our own members, where an unknown member is a mistake.
func isOurs(t reflect.Type) bool {
	switch t {
	case reflect.TypeFor[ours](), reflect.TypeFor[settings](), reflect.TypeFor[toolList](),
		reflect.TypeFor[authSettings](), reflect.TypeFor[upstreamAuth](), reflect.TypeFor[tokenRequest]():
		return true
	}
	return false
}

// settingsOf returns the names of the members that a type is read from, in order.
func settingsOf(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			names = append(names, settingsOf(f.Type)...)
		} else if f.IsExported() {
			names = append(names, f.Tag.Get("json"))
		}
	}
	slices.Sort(names)
	return names
}

// isNamed reports whether a type is a [named].
func isNamed(t reflect.Type) bool {
	return t.Kind() == reflect.Slice && strings.HasPrefix(t.Name(), "named[")
}

// members reads an object with members that the user named.
func (d *decoder) members(from *hujson.Value, v reflect.Value, path string) {
	all, ok := from.Value.(*hujson.Object)
	if !ok {
		all, ok = d.byName(from, v.Type(), path)
	}
	if !ok {
		d.wrong(from, path, "an object")
		return
	}
	seen := make(map[string]bool)
	for i := range all.Members {
		m := &all.Members[i]
		name := m.Name.Value.(hujson.Literal).String()
		if seen[name] {
			d.failf(m.Name.StartOffset, "%s is there twice: rename one", join(path, name))
			continue
		}
		seen[name] = true
		if l, ok := m.Value.Value.(hujson.Literal); ok && l.Kind() == 'n' {
			continue
		}
		v.Set(reflect.Append(v, reflect.Zero(v.Type().Elem())))
		one := v.Index(v.Len() - 1)
		one.FieldByName("At").SetInt(int64(m.Name.StartOffset))
		one.FieldByName("Name").SetString(name)
		switch v.Type() {
		case reflect.TypeFor[named[hostServer]](), reflect.TypeFor[named[settings]]():
			d.spans = append(d.spans, span{name, m.Value.StartOffset, m.Value.EndOffset})
		}
		d.value(&m.Value, one.FieldByName("Value"), join(path, name))
	}
}

// byName returns a list of servers, as Continue has them, as an object with their names.
func (d *decoder) byName(from *hujson.Value, t reflect.Type, path string) (*hujson.Object, bool) {
	list, ok := from.Value.(*hujson.Array)
	if !ok || t != reflect.TypeFor[named[hostServer]]() {
		return nil, false
	}
	all := &hujson.Object{}
	for i := range list.Elements {
		one, ok := list.Elements[i].Value.(*hujson.Object)
		if !ok {
			d.wrong(&list.Elements[i], fmt.Sprintf("%s[%d]", path, i), "an object")
			continue
		}
		at := slices.IndexFunc(one.Members, func(m hujson.ObjectMember) bool {
			_, isText := literal(&m.Value, '"')
			return isText && m.Name.Value.(hujson.Literal).String() == "name"
		})
		if at < 0 {
			d.failf(list.Elements[i].StartOffset, `%s[%d] has no name: add "name"`, path, i)
			continue
		}
		all.Members = append(all.Members, hujson.ObjectMember{Name: one.Members[at].Value, Value: list.Elements[i]})
	}
	return all, true
}

// fieldOf returns the field of a struct that a member is read into.
func fieldOf(v reflect.Value, name string) (reflect.Value, bool) {
	t := v.Type()
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			if found, ok := fieldOf(v.Field(i), name); ok {
				return found, true
			}
		} else if f.IsExported() && f.Tag.Get("json") == name {
			return v.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// unfit notes that the value of a setting is of another kind than is wanted, or is not a value that the setting can have.
func (d *decoder) unfit(from *hujson.Value, kind hujson.Kind, path, want string) {
	l, ok := literal(from, kind)
	if !ok {
		d.wrong(from, path, want)
		return
	}
	d.failf(from.StartOffset, "%s is %.40s: want %s", path, string(l), want)
}

// isServer reports whether a value looks like a server.
func isServer(v *hujson.Value) bool {
	all, ok := v.Value.(*hujson.Object)
	return ok && slices.ContainsFunc(all.Members, func(m hujson.ObjectMember) bool {
		switch m.Name.Value.(hujson.Literal).String() {
		case "type", "command", "url", "enabled":
			return true
		}
		return false
	})
}

// wrong notes that a value has the wrong type. It does not show the value, which may be a secret in the wrong
// place.
func (d *decoder) wrong(from *hujson.Value, path, want string) {
	is := "null"
	switch v := from.Value.(type) {
	case *hujson.Object:
		is = "an object"
	case *hujson.Array:
		is = "an array"
	case hujson.Literal:
		switch v.Kind() {
		case '"':
			is = "a string"
		case '0':
			is = "a number"
		case 't', 'f':
			is = "true or false"
		}
	}
	d.failf(from.StartOffset, "%s is %s: want %s", path, is, want)
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}
