package install

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// BackupSuffix follows the name of a file in the name of its backup. The backup has the content of the file before this package
// changed it, and stays as it is until another part of the file is changed. A file that [Host.Add] has made has no backup.
const BackupSuffix = ".holdfast-backup"

// A Change is a change of a host's file that is not written yet.
type Change struct {
	File string
	// Before and After are texts without a byte order mark. Before is "" if there was no file.
	Before, After string
	// New: there is no file yet. Delete: the file goes, since holdfast made it and nothing is left in it.
	New, Delete bool
	encoding    encoding
	raw         []byte
	mode        fs.FileMode
	// made: this package has made the file, and nothing else is in it. kept: the backup stays as it is; it has none if made is set.
	made, kept bool
	// stale: the backup is of a file that is gone, and had nothing in it.
	stale bool
}

// Same reports whether there is nothing to change.
func (c *Change) Same() bool { return !c.New && !c.Delete && c.Before == c.After }

// An encoding is the encoding of a text in its file.
type encoding struct {
	order binary.ByteOrder // nil: UTF-8
	mark  bool
}

// decode returns a text, and its encoding. PowerShell writes UTF-16.
func decode(data []byte) (string, encoding, error) {
	var e encoding
	switch {
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}):
		e = encoding{binary.LittleEndian, true}
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}):
		e = encoding{binary.BigEndian, true}
	case bytes.HasPrefix(data, []byte("\ufeff")):
		e.mark = true
		data = data[len("\ufeff"):]
	}
	if e.order == nil {
		if !utf8.Valid(data) {
			return "", e, errors.New("it is no text in UTF-8")
		}
		return string(data), e, nil
	}
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = e.order.Uint16(data[2*i:])
	}
	text := string(utf16.Decode(units[1:]))
	if !bytes.Equal(e.encode(text), data) {
		return "", e, errors.New("it is no text in UTF-16")
	}
	return text, e, nil
}

func (e encoding) encode(text string) []byte {
	if e.mark {
		text = "\ufeff" + text
	}
	if e.order == nil {
		return []byte(text)
	}
	var data []byte
	for _, unit := range utf16.Encode([]rune(text)) {
		data = binary.BigEndian.AppendUint16(data, unit)
	}
	if e.order == binary.ByteOrder(binary.LittleEndian) {
		for i := 0; i < len(data); i += 2 {
			data[i], data[i+1] = data[i+1], data[i]
		}
	}
	return data
}

// read begins a change of a file.
func read(file string) (*Change, error) {
	c := &Change{File: file, mode: 0o600}
	info, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Lstat(file); err == nil {
			return nil, fmt.Errorf("%s is a link to a file that is not there: make that file, or remove the link", file)
		}
		c.New = true
		return c, nil
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s is no file", file)
	}
	c.mode = info.Mode().Perm()
	if c.raw, err = os.ReadFile(file); err != nil {
		return nil, err
	}
	if c.Before, c.encoding, err = decode(c.raw); err != nil {
		return nil, fmt.Errorf("%s: %w: save it as UTF-8. Nothing was written", file, err)
	}
	return c, nil
}

// sectionOf returns the members in which a file has its servers.
func (h *Host) sectionOf(file string) []string {
	if h.Name == "vscode" && filepath.Base(file) == "settings.json" { // as it was before mcp.json
		return []string{"mcp", "servers"}
	}
	return h.form.section
}

// ErrTaken says that there is another server of the name.
var ErrTaken = errors.New("the name is taken")

// Add returns the change that adds a server. If force is true, it takes the place of another server of the name.
func (h *Host) Add(file, name string, s *Server, force bool) (*Change, error) {
	c, err := read(file)
	if err != nil {
		return nil, err
	}
	taken := func() error {
		return fmt.Errorf("%w: %s has another server %q: choose a name with --name, or replace that server with --force. Nothing was written", ErrTaken, file, name)
	}
	if h.form.toml {
		if err := h.addTOML(c, name, s, force, taken); err != nil {
			return nil, err
		}
		h.settle(c)
		return c, nil
	}
	value, err := h.value(s)
	if err != nil {
		return nil, err
	}
	section := h.sectionOf(file)
	j, err := parseJSON(file, c.Before, section)
	if err != nil {
		return nil, err
	}
	m, err := j.get(name)
	if err != nil {
		return nil, err
	}
	plain := style{}.render(value, "")
	if m != nil {
		if same(c.Before[m.Value.StartOffset:m.Value.EndOffset], plain) {
			c.After = c.Before
			return c, nil
		}
		if !force {
			return nil, taken()
		}
	}
	if c.After, err = j.add(name, value); err != nil {
		return nil, err
	}
	after, err := parseJSON(file, c.After, section)
	if err != nil {
		return nil, fmt.Errorf("the server cannot be put into this file: %w", err)
	}
	if m, err := after.get(name); err != nil || m == nil || !same(c.After[m.Value.StartOffset:m.Value.EndOffset], plain) {
		return nil, fmt.Errorf("%s: the server cannot be put into this file: add it by hand, as --print shows it for an empty file", file)
	}
	h.settle(c)
	return c, nil
}

// settle decides about the backup when a server is added.
func (h *Host) settle(c *Change) {
	was := h.origin(c)
	c.made, c.kept = was.made, was.kept
	c.stale = c.New && was.backup != nil && h.within(c.File, was.backup.Before, c.After)
}

// An origin is the content of a file before servers were added to it.
type origin struct {
	// backup is the backup beside the file, or nil.
	backup *Change
	// known: the file has the content of text, and servers that were added to it. made: there was no file before.
	known, made bool
	text        string
	// kept: each of these servers runs "holdfast connect", so that no other program's are among them.
	kept bool
}

// origin returns the content of a file before servers were added to it.
func (h *Host) origin(c *Change) (o origin) {
	if old, err := read(c.File + BackupSuffix); err == nil && !old.New && old.encoding == c.encoding {
		o.backup = old
	}
	if c.New {
		return o
	}
	if o.backup != nil && h.within(c.File, o.backup.Before, c.Before) {
		o.known, o.text = true, o.backup.Before
		o.kept = h.connects(c.File, o.text, c.Before)
		return o
	}
	if strings.TrimSpace(c.Before) != "" && c.encoding == (encoding{}) && h.within(c.File, "", c.Before) && h.connects(c.File, "", c.Before) {
		return origin{backup: o.backup, known: true, made: true, kept: true}
	}
	return o
}

// with returns text with the servers added that other has beside those of text, except for without: "" stands for none. It
// reports whether they can be added.
func (h *Host) with(file, text, other, without string) (string, bool) {
	section := h.sectionOf(file)
	if h.form.toml {
		from, err := parseTOML(file, other, section)
		if err != nil {
			return "", false
		}
		for _, name := range from.inOrder() {
			to, err := parseTOML(file, text, section)
			if err != nil {
				return "", false
			}
			if name == without || to.get(name) != nil {
				continue
			}
			if text, err = to.add(from.block(name)); err != nil {
				return "", false
			}
		}
		return text, true
	}
	from, err := parseJSON(file, other, section)
	if err != nil {
		return "", false
	}
	for _, name := range from.names() {
		to, err := parseJSON(file, text, section)
		if err != nil {
			return "", false
		}
		has, err := to.get(name)
		if err != nil {
			return "", false
		}
		if name == without || has != nil {
			continue
		}
		m, err := from.get(name)
		if err != nil {
			return "", false
		}
		if text, err = to.add(name, valueOf(&m.Value)); err != nil {
			return "", false
		}
	}
	return text, true
}

// within reports whether other is text with servers added to it.
func (h *Host) within(file, text, other string) bool {
	all, ok := h.with(file, text, other, "")
	return ok && all == other
}

// connects reports whether each server that other has beside those of text runs "holdfast connect".
func (h *Host) connects(file, text, other string) bool {
	before, err := h.servers(file, text)
	if err != nil {
		return false
	}
	after, err := h.servers(file, other)
	if err != nil {
		return false
	}
	for name, server := range after {
		if before[name] != nil {
			continue
		}
		s, _ := server.(map[string]any)
		args, _ := s["args"].([]any)
		if h.form.listed {
			args, _ = s["command"].([]any)
			args = args[min(1, len(args)):]
		}
		if len(args) == 0 || args[0] != "connect" {
			return false
		}
	}
	return true
}

// servers returns the servers of a text, by their names.
func (h *Host) servers(file, text string) (map[string]any, error) {
	section := h.sectionOf(file)
	if h.form.toml {
		t, err := parseTOML(file, text, section)
		if err != nil {
			return nil, err
		}
		all, _ := t.all[t.section].(map[string]any)
		return all, nil
	}
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	plain, err := hujson.Standardize([]byte(text))
	if err != nil {
		return nil, err
	}
	var all map[string]any
	if err := json.Unmarshal(plain, &all); err != nil {
		return nil, err
	}
	for _, name := range section {
		all, _ = all[name].(map[string]any)
	}
	return all, nil
}

func (h *Host) addTOML(c *Change, name string, s *Server, force bool, taken func() error) error {
	t, err := parseTOML(c.File, c.Before, h.form.section)
	if err != nil {
		return err
	}
	table, err := h.table(name, s, t.newline())
	if err != nil {
		return err
	}
	want, err := parseTOML(c.File, table, h.form.section)
	if err != nil {
		return err
	}
	plain := fmt.Sprint(want.get(name))
	switch has := t.get(name); {
	case has == nil:
		c.After, err = t.add(table)
	case fmt.Sprint(has) == plain:
		c.After = c.Before
		return nil
	case !force:
		return taken()
	default:
		c.After, err = t.replace(name, table)
	}
	if err != nil {
		return err
	}
	after, err := parseTOML(c.File, c.After, h.form.section)
	if err != nil {
		return fmt.Errorf("the server cannot be put into this file: %w", err)
	}
	if fmt.Sprint(after.get(name)) != plain {
		return fmt.Errorf("%s: the server cannot be put into this file: add it by hand, as --print shows it for an empty file", c.File)
	}
	return nil
}

// Remove returns the change that takes a server out. If the file is as Add has left it, its content from before is restored.
func (h *Host) Remove(file, name string) (*Change, error) {
	c, err := read(file)
	if err != nil {
		return nil, err
	}
	if c.New {
		return nil, fmt.Errorf("there is no file %s: nothing to take out", file)
	}
	was := h.origin(c)
	c.made, c.kept = was.made, was.kept
	section := h.sectionOf(file)
	if h.form.toml {
		t, err := parseTOML(file, c.Before, section)
		if err != nil {
			return nil, err
		}
		if t.get(name) == nil {
			return nil, h.notThere(file, name, t.names())
		}
		if c.After, err = t.remove(name); err != nil {
			return nil, err
		}
		if was.known {
			if o, err := parseTOML(file, was.text, section); err == nil && o.get(name) == nil {
				h.restore(c, was, name)
			}
		}
		return c, nil
	}
	j, err := parseJSON(file, c.Before, section)
	if err != nil {
		return nil, err
	}
	m, err := j.get(name)
	if err != nil {
		return nil, err
	}
	if m == nil {
		return nil, h.notThere(file, name, j.names())
	}
	keep := false
	if was.backup != nil {
		if o, err := parseJSON(file, was.backup.Before, section); err == nil && o.root.Value != nil {
			_, _, missing, err := o.at()
			keep = err == nil && missing == nil
		}
	}
	if c.After, err = j.remove(name, keep); err != nil {
		return nil, err
	}
	if _, err := parseJSON(file, c.After, section); err != nil {
		return nil, fmt.Errorf("the server cannot be taken out of this file: %w", err)
	}
	if was.known {
		if o, err := parseJSON(file, was.text, section); err == nil {
			if has, err := o.get(name); err == nil && has == nil {
				h.restore(c, was, name)
			}
		}
	}
	return c, nil
}

// restore makes a change restore the content from before a server was added.
func (h *Host) restore(c *Change, was origin, name string) {
	text, ok := h.with(c.File, was.text, c.Before, name)
	if !ok {
		return
	}
	c.After = text
	c.Delete = was.made && text == ""
}

func (h *Host) notThere(file, name string, names []string) error {
	has := "it has none"
	if len(names) > 0 {
		has = "it has " + strings.Join(names, ", ")
	}
	return fmt.Errorf("%s has no server %q: %s", file, name, has)
}

// Diff returns the change in the form of diff -u. It does not show the values of members that are secrets by their names.
func (c *Change) Diff() string {
	before, after := linesOf(c.Before), linesOf(c.After)
	if c.Delete {
		after = nil
	}
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	tail := 0
	for tail < min(len(before), len(after))-same && before[len(before)-1-tail] == after[len(after)-1-tail] {
		tail++
	}
	const around = 3
	from, end := max(0, same-around), min(tail, around)
	var b strings.Builder
	was, is := c.File, c.File
	if c.New {
		was = os.DevNull
	}
	if c.Delete {
		is = os.DevNull
	}
	start := func(n, count int) int {
		if count == 0 {
			return n
		}
		return n + 1
	}
	old, now := len(before)-tail+end-from, len(after)-tail+end-from
	fmt.Fprintf(&b, "--- %s\n+++ %s\n@@ -%d,%d +%d,%d @@\n", was, is, start(from, old), old, start(from, now), now)
	put := func(mark string, lines []string) {
		for _, line := range lines {
			b.WriteString(mark + line + "\n")
		}
	}
	put(" ", before[from:same])
	put("-", before[same:len(before)-tail])
	put("+", after[same:len(after)-tail])
	put(" ", before[len(before)-tail:len(before)-tail+end])
	return secretMember.ReplaceAllStringFunc(b.String(), func(text string) string {
		if strings.Contains(text, "${") || strings.Contains(text, "{env:") || strings.Contains(text, `"$`) {
			return text // names a variable
		}
		return secretMember.ReplaceAllString(text, `$1"…"`)
	})
}

// secretMember matches members, of JSON or TOML, with values that are secrets by the members' names.
var secretMember = regexp.MustCompile(`((?i:"?[a-z0-9_-]*(?:token|key|secret|passw|auth|header|credential)[a-z0-9_-]*"?)[ \t]*[:=][ \t]*)"(?:[^"\\\n]|\\.)+"`)

// linesOf returns the lines of a text, without their line ends.
func linesOf(text string) []string {
	if text == "" {
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines {
		lines[i] = strings.TrimSuffix(lines[i], "\r")
	}
	return lines
}

// Write writes the change, and before it the backup. It returns the backup's name: "" if there is none, since this package has
// made the file. The file has the old content or the new one at any time. A link stays a link.
func (c *Change) Write() (backup string, err error) {
	target := c.File
	if c.New {
		if err := os.MkdirAll(filepath.Dir(c.File), 0o755); err != nil {
			return "", err
		}
	} else {
		if target, err = filepath.EvalSymlinks(c.File); err != nil {
			return "", err
		}
		if c.mode&0o200 == 0 {
			return "", fmt.Errorf("%s may only be read (mode %v): nothing was written", c.File, c.mode)
		}
	}
	made, err := c.prepare(target, c.encoding.encode(c.After))
	if err != nil {
		return "", fmt.Errorf("%w: nothing was written", err)
	}
	defer func() { _ = os.Remove(made) }() // the new file is gone by then, if all went well
	if !c.New && !c.made {
		backup = c.File + BackupSuffix
	}
	if backup != "" && !c.kept {
		kept, err := c.prepare(backup, c.raw)
		if err != nil {
			return "", fmt.Errorf("backup: %w: nothing was written", err)
		}
		defer func() { _ = os.Remove(kept) }()
		if err := c.unchanged(target); err != nil {
			return "", err
		}
		if err := os.Rename(kept, backup); err != nil {
			return "", fmt.Errorf("backup: %w: nothing was written", err)
		}
	} else if err := c.unchanged(target); err != nil {
		return "", err
	}
	if c.Delete {
		return backup, os.Remove(c.File)
	}
	if c.stale {
		if err := os.Remove(c.File + BackupSuffix); err != nil {
			return "", fmt.Errorf("backup: %w: nothing was written", err)
		}
	}
	return backup, os.Rename(made, target)
}

// unchanged returns an error if another program has written the file since it was read.
func (c *Change) unchanged(target string) error {
	now, err := os.ReadFile(target)
	if c.New && errors.Is(err, fs.ErrNotExist) || !c.New && err == nil && slices.Equal(now, c.raw) {
		return nil
	}
	return fmt.Errorf("another program has just changed %s: run this again. Nothing was written", c.File)
}

// prepare writes data to a new file beside another, with the mode of the host's file.
func (c *Change) prepare(beside string, data []byte) (name string, err error) {
	f, err := os.CreateTemp(filepath.Dir(beside), ".holdfast-*")
	if err != nil {
		return "", err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(c.mode)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		_ = os.Remove(f.Name())
		return "", err
	}
	return f.Name(), nil
}
