package install

import (
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
	"github.com/pelletier/go-toml/v2/unstable"
)

// A tomlFile is the text of a file, as TOML.
type tomlFile struct {
	file, text string
	section    string
	all        map[string]any
	lines      []expression
}

// An expression is the head of a table, or a key with its value.
type expression struct {
	path     []string // with that of the table
	head     bool
	inline   bool // the value is an inline table
	from, to int  // its lines, without the spaces and the line end after the last one
}

// parseTOML parses the text of a file.
func parseTOML(file, text string, section []string) (*tomlFile, error) {
	t := &tomlFile{file: file, text: text, section: section[0]}
	if err := toml.Unmarshal([]byte(text), &t.all); err != nil {
		place := file
		if wrong, ok := errors.AsType[*toml.DecodeError](err); ok {
			line, column := wrong.Position()
			place = fmt.Sprintf("%s:%d:%d", file, line, column)
		}
		return nil, fmt.Errorf("%s: not TOML: %s: correct it first. Nothing was written", place, strings.TrimPrefix(err.Error(), "toml: "))
	}
	p := unstable.Parser{}
	p.Reset([]byte(text))
	var table []string
	for p.NextExpression() {
		node := p.Expression()
		e := expression{head: node.Kind == unstable.Table || node.Kind == unstable.ArrayTable}
		var own []string
		from, to := -1, 0
		for keys := node.Key(); keys.Next(); {
			key := keys.Node()
			own = append(own, string(key.Data))
			if from < 0 {
				from = int(key.Raw.Offset)
			}
			to = int(key.Raw.Offset + key.Raw.Length)
		}
		if e.head {
			table = own
			e.path = own
		} else {
			e.path = slices.Concat(table, own)
			e.inline = node.Value().Kind == unstable.InlineTable
			to = int(node.Raw.Offset + node.Raw.Length)
		}
		e.from = strings.LastIndexByte(text[:from], '\n') + 1
		e.to = len(strings.TrimRight(text[:lineEnd(text, to)], " \t"))
		t.lines = append(t.lines, e)
	}
	return t, p.Error()
}

// lineEnd returns the end of the line of a place, before its line end.
func lineEnd(text string, at int) int {
	n := strings.IndexByte(text[at:], '\n')
	if n < 0 {
		return len(text)
	}
	return len(strings.TrimSuffix(text[:at+n], "\r"))
}

func (t *tomlFile) newline() string {
	if i := strings.IndexByte(t.text, '\n'); i > 0 && t.text[i-1] == '\r' {
		return "\r\n"
	}
	return "\n"
}

// get returns a server, or nil.
func (t *tomlFile) get(name string) any {
	all, _ := t.all[t.section].(map[string]any)
	return all[name]
}

// names returns the names of all servers.
func (t *tomlFile) names() []string {
	servers, _ := t.all[t.section].(map[string]any)
	return slices.Sorted(maps.Keys(servers))
}

// inOrder returns the names of all servers, in the order of the file.
func (t *tomlFile) inOrder() (all []string) {
	for _, e := range t.lines {
		if len(e.path) > 1 && e.path[0] == t.section && !slices.Contains(all, e.path[1]) {
			all = append(all, e.path[1])
		}
	}
	return all
}

// bareKey matches the keys that need no quotes.
var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(name string) string {
	if bareKey.MatchString(name) {
		return name
	}
	return tomlText(name)
}

// tomlText returns a string as TOML.
func tomlText(s string) string {
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r < ' ' || r == 0x7f:
			fmt.Fprintf(&b, `\u%04X`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

func tomlList(all []string) string {
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = tomlText(s)
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// table returns a server as a table, without a line end after it.
func (h *Host) table(name string, s *Server, newline string) (string, error) {
	env, err := h.env(s)
	if err != nil {
		return "", err
	}
	head := h.form.section[0] + "." + tomlKey(name)
	lines := []string{"[" + head + "]", "command = " + tomlText(s.Command[0]), "args = " + tomlList(s.Command[1:])}
	if len(s.Pass) > 0 {
		lines = append(lines, "env_vars = "+tomlList(s.Pass))
	}
	if len(env) > 0 {
		lines = append(lines, "", "["+head+"."+h.form.env+"]")
		for _, v := range env {
			lines = append(lines, tomlKey(v.Name)+" = "+tomlText(v.Value))
		}
	}
	return strings.Join(lines, newline), nil
}

// add returns the text with the table of a server that it does not have.
func (t *tomlFile) add(table string) (string, error) {
	newline := t.newline()
	if strings.TrimSpace(t.text) == "" {
		return table + newline, nil
	}
	at := -1
	for _, e := range t.lines {
		if e.path[0] != t.section {
			continue
		}
		if at = e.to; !e.head && len(e.path) == 1 {
			return "", t.failf(e.from, "%q is an inline table: write its servers as tables, [%s.NAME]", t.section, t.section)
		}
	}
	end := len(strings.TrimRight(t.text, " \t\r\n"))
	if at < 0 || t.rootAfter(at) { // keys that followed the new table would be its own
		at = end
	}
	return apply(t.text, edit{at, at, newline + newline + table}), nil
}

// rootAfter reports whether keys of another table than a server's follow a place directly.
func (t *tomlFile) rootAfter(at int) bool {
	for _, e := range t.lines {
		if e.from >= at {
			return !e.head
		}
	}
	return false
}

func (t *tomlFile) failf(at int, format string, args ...any) error {
	before := t.text[:at]
	return fmt.Errorf("%s:%d:%d: %s. Nothing was written", t.file, strings.Count(before, "\n")+1, len(before)-strings.LastIndexByte(before, '\n'), fmt.Sprintf(format, args...))
}

// parts returns the parts of the text that are a server: consecutive lines, with the text between them.
func (t *tomlFile) parts(name string) (all []edit, err error) {
	before := false
	for _, e := range t.lines {
		is := len(e.path) > 1 && e.path[0] == t.section && e.path[1] == name
		switch {
		case is && before:
			all[len(all)-1].to = e.to
		case is:
			all = append(all, edit{from: e.from, to: e.to})
		case !e.head && len(e.path) == 1 && e.path[0] == t.section:
			return nil, t.failf(e.from, "%q is an inline table: write its servers as tables, [%s.NAME]", t.section, t.section)
		}
		before = is
	}
	return all, nil
}

// block returns the text of a server's lines, "" if they are not together.
func (t *tomlFile) block(name string) string {
	parts, err := t.parts(name)
	if err != nil || len(parts) != 1 {
		return ""
	}
	return t.text[parts[0].from:parts[0].to]
}

// replace returns the text with a table in the place of a server's lines.
func (t *tomlFile) replace(name, table string) (string, error) {
	parts, err := t.parts(name)
	if err != nil || len(parts) == 0 {
		return t.text, err
	}
	first := parts[0]
	if i := slices.IndexFunc(t.lines, func(e expression) bool { return e.from == first.from }); !t.lines[i].head {
		removed, err := t.remove(name)
		if err != nil {
			return "", err
		}
		rest, err := parseTOML(t.file, removed, []string{t.section})
		if err != nil {
			return "", err
		}
		return rest.add(table)
	}
	edits := []edit{{first.from, first.to, table}}
	for _, p := range parts[1:] {
		edits = append(edits, t.cut(p))
	}
	return apply(t.text, edits...), nil
}

// remove returns the text without a server.
func (t *tomlFile) remove(name string) (string, error) {
	parts, err := t.parts(name)
	if err != nil {
		return "", err
	}
	for i, p := range parts {
		parts[i] = t.cut(p)
	}
	return apply(t.text, parts...), nil
}

// cut returns the edit that takes out some lines, and the empty line before them.
func (t *tomlFile) cut(p edit) edit {
	if p.from == 0 {
		p.to = min(lineEnd(t.text, p.to)+len(t.newline()), len(t.text))
		return edit{p.from, p.to, ""}
	}
	before := func(at int) int { // the end of the line before the one that begins at at
		return len(strings.TrimSuffix(t.text[:at-1], "\r"))
	}
	p.from = before(p.from)
	if start := strings.LastIndexByte(t.text[:p.from], '\n') + 1; start > 0 && strings.TrimSpace(t.text[start:p.from]) == "" {
		p.from = before(start)
	}
	return edit{p.from, p.to, ""}
}
