package terminal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/mail"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"holdfast/jsonrpc"
)

// A field is one property of the schema of an elicitation (2025-11-25, Elicitation,
// "Requested Schema"). Such a schema is flat, so the checks of a field are done here. A JSON
// Schema library would need all of them a second time, to tell the user what to type; it
// ignores "format"; and a hostile schema, deep or with a $ref to itself, could stop it.
type field struct {
	name     string
	required bool

	Type        string          `json:"type"`
	Title       string          `json:"title"`
	Description string          `json:"description"`
	Default     json.RawMessage `json:"default"`
	Format      string          `json:"format"`
	MinLength   *int            `json:"minLength"`
	MaxLength   *int            `json:"maxLength"`
	Minimum     *float64        `json:"minimum"`
	Maximum     *float64        `json:"maximum"`
	MinItems    *int            `json:"minItems"`
	MaxItems    *int            `json:"maxItems"`
	options
	Items options `json:"items"`
}

// options are the ways in which a schema lists values to choose from.
type options struct {
	Enum      []string `json:"enum"`
	EnumNames []string `json:"enumNames"` // titles, of earlier revisions
	OneOf     []option `json:"oneOf"`
	AnyOf     []option `json:"anyOf"`
}

type option struct {
	Const string `json:"const"`
	Title string `json:"title"`
}

// A choice is a value to choose, and the title that is shown for it.
type choice struct{ value, title string }

// fieldsOf returns the fields of a schema, in its order, and then fields that it requires and does not
// describe. A default that the schema does not allow is left out.
func fieldsOf(schema []byte) []field {
	var fields []field
	var required []string
	_ = json.Unmarshal(jsonrpc.Field(schema, "required"), &required)
	isRequired := make(map[string]bool, len(required)) // a server may list very many
	for _, name := range required {
		isRequired[name] = true
	}
	known := make(map[string]bool)
	jsonrpc.Each(jsonrpc.Field(schema, "properties"), func(name, value []byte) {
		f := field{}
		if json.Unmarshal(value, &f) != nil {
			f = field{} // of an unknown kind: the user types JSON
		}
		f.name = string(name)
		f.required = isRequired[f.name]
		if string(f.Default) == "null" || !f.takes(f.Default) {
			f.Default = nil
		}
		fields = append(fields, f)
		known[f.name] = true
	})
	for _, name := range required {
		if name != "" && !known[name] { // "": not a string
			known[name] = true
			fields = append(fields, field{name: name, required: true})
		}
	}
	return fields
}

// takes reports whether a JSON value fits the field. nil does.
func (f *field) takes(raw json.RawMessage) bool {
	if raw == nil || f.kind() == "" {
		return true
	}
	choices := make(map[string]bool) // a server may list very many, and as many defaults
	for _, c := range f.choices() {
		choices[c.value] = true
	}
	isChoice := func(value string) bool { return len(choices) == 0 || choices[value] }
	switch v := decode(raw).(type) {
	case string:
		return f.kind() == "string" && isChoice(v) && f.checkText(v) == nil
	case bool:
		return f.kind() == "boolean"
	case json.Number:
		if f.kind() != "number" && f.kind() != "integer" {
			return false
		}
		_, err := f.parseNumber(v.String())
		return err == nil
	case []any:
		return f.many() && f.checkCount(len(v)) == nil && !slices.ContainsFunc(v, func(one any) bool {
			text, is := one.(string)
			return !is || !isChoice(text)
		})
	}
	return false
}

func (f *field) label() string {
	if f.Title != "" {
		return f.Title
	}
	return f.name
}

// kind returns the type of the field; "" if it is unknown.
func (f *field) kind() string {
	switch f.Type {
	case "string", "number", "integer", "boolean", "array":
		return f.Type
	}
	if len(f.choices()) > 0 {
		return "string"
	}
	return ""
}

// many reports whether the user chooses several values.
func (f *field) many() bool { return f.Type == "array" }

// minLength returns how long a text must be.
func (f *field) minLength() int {
	if f.MinLength != nil {
		return *f.MinLength
	}
	return 0
}

func (f *field) choices() []choice {
	o := f.options
	if f.many() {
		o = f.Items
	}
	var all []choice
	for i, value := range o.Enum {
		title := value
		if i < len(o.EnumNames) {
			title = o.EnumNames[i]
		}
		all = append(all, choice{value, title})
	}
	for _, one := range slices.Concat(o.OneOf, o.AnyOf) {
		title := one.Title
		if title == "" {
			title = one.Const
		}
		all = append(all, choice{one.Const, title})
	}
	return all
}

// hint returns the value that an empty line stands for, or the words that can be typed.
func (f *field) hint() string {
	switch {
	case f.Default != nil:
		return f.defaultText()
	case !f.required:
		return "none"
	case f.Type == "boolean":
		return "y/n"
	}
	return ""
}

// defaultText returns the default as a user would type it.
func (f *field) defaultText() string {
	switch v := decode(f.Default).(type) {
	case string:
		return f.titles()(v)
	case bool:
		if v {
			return "yes"
		}
		return "no"
	case []any:
		words, title := make([]string, len(v)), f.titles()
		for i, one := range v {
			words[i] = title(fmt.Sprint(one))
		}
		return strings.Join(words, ", ")
	}
	return string(f.Default)
}

// titles returns a function from values to their titles.
func (f *field) titles() func(value string) string {
	titles := make(map[string]string)
	for _, c := range f.choices() {
		if _, is := titles[c.value]; !is {
			titles[c.value] = c.title
		}
	}
	return func(value string) string {
		if title, is := titles[value]; is {
			return title
		}
		return value
	}
}

// decode decodes a JSON value; nil if raw is not JSON. Numbers keep their spelling.
func decode(raw []byte) any {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	_ = d.Decode(&v)
	return v
}

// parse returns the JSON value of a text that was typed, or an error that says what to type.
func (f *field) parse(text string) (json.RawMessage, error) {
	if f.many() {
		return f.parseMany(text)
	}
	if choices := f.choices(); len(choices) > 0 {
		value, err := pick(choices, text)
		if err != nil {
			return nil, err
		}
		return json.Marshal(value)
	}
	switch f.kind() {
	case "string":
		if err := f.checkText(text); err != nil {
			return nil, err
		}
		return json.Marshal(text)
	case "number", "integer":
		return f.parseNumber(text)
	case "boolean":
		yes, ok := yesOrNo(text)
		if !ok {
			return nil, errors.New("want yes or no")
		}
		return json.Marshal(yes)
	}
	if !json.Valid([]byte(text)) {
		return nil, errors.New("want JSON")
	}
	return json.RawMessage(text), nil
}

// pick returns the value that was typed: as itself, as a number in the list, or as a title.
func pick(choices []choice, text string) (string, error) {
	for _, c := range choices {
		if c.value == text {
			return c.value, nil
		}
	}
	if n, err := strconv.Atoi(text); err == nil && n >= 1 && n <= len(choices) {
		return choices[n-1].value, nil
	}
	for _, c := range choices {
		if strings.EqualFold(c.title, text) || strings.EqualFold(c.value, text) {
			return c.value, nil
		}
	}
	return "", fmt.Errorf("there is no %q: want a number from 1 to %d", text, len(choices))
}

func (f *field) parseMany(text string) (json.RawMessage, error) {
	values := []string{}
	for part := range strings.SplitSeq(text, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		if choices := f.choices(); len(choices) > 0 {
			var err error
			if part, err = pick(choices, part); err != nil {
				return nil, err
			}
		}
		if !slices.Contains(values, part) {
			values = append(values, part)
		}
	}
	if err := f.checkCount(len(values)); err != nil {
		return nil, err
	}
	return json.Marshal(values)
}

// checkCount checks how many values there are.
func (f *field) checkCount(n int) error {
	switch {
	case f.MinItems != nil && n < *f.MinItems:
		return fmt.Errorf("want at least %d", *f.MinItems)
	case f.MaxItems != nil && n > *f.MaxItems:
		return fmt.Errorf("want at most %d", *f.MaxItems)
	}
	return nil
}

func (f *field) parseNumber(text string) (json.RawMessage, error) {
	n, err := strconv.ParseFloat(text, 64)
	switch {
	case err != nil, math.IsInf(n, 0), math.IsNaN(n), !json.Valid([]byte(text)):
		return nil, errors.New("want a number")
	case f.Type == "integer" && n != math.Trunc(n):
		return nil, errors.New("want a whole number")
	case f.Minimum != nil && n < *f.Minimum:
		return nil, fmt.Errorf("want at least %s", number(*f.Minimum))
	case f.Maximum != nil && n > *f.Maximum:
		return nil, fmt.Errorf("want at most %s", number(*f.Maximum))
	}
	return json.RawMessage(text), nil
}

func (f *field) checkText(text string) error {
	n := utf8.RuneCountInString(text)
	switch {
	case n < f.minLength():
		return fmt.Errorf("want at least %d characters", f.minLength())
	case f.MaxLength != nil && n > *f.MaxLength:
		return fmt.Errorf("want at most %d characters", *f.MaxLength)
	}
	var err error
	example := ""
	switch f.Format {
	case "email":
		var a *mail.Address
		a, err = mail.ParseAddress(text)
		if err == nil && a.Address != text {
			err = errors.New("more than an address")
		}
		example = "an e-mail address like ada@example.com"
	case "uri":
		var u *url.URL
		u, err = url.Parse(text)
		if err == nil && !u.IsAbs() {
			err = errors.New("no scheme")
		}
		example = "a URI like https://example.com/"
	case "date":
		_, err = time.Parse(time.DateOnly, text)
		example = "a date like 2026-01-31"
	case "date-time":
		_, err = time.Parse(time.RFC3339, text)
		example = "a date and time like 2026-01-31T12:00:00Z"
	}
	if err != nil {
		return fmt.Errorf("want %s", example)
	}
	return nil
}

func yesOrNo(text string) (yes, ok bool) {
	switch strings.ToLower(text) {
	case "y", "yes", "true", "1":
		return true, true
	case "n", "no", "false", "0":
		return false, true
	}
	return false, false
}
