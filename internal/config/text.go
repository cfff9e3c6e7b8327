package config

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
)

// plainText returns a text in UTF-8 without the mark that some editors write at its beginning. The text may
// be in UTF-16, as PowerShell writes it.
func plainText(data []byte) []byte {
	var order binary.ByteOrder
	switch {
	case bytes.HasPrefix(data, []byte{0xff, 0xfe}), len(data) > 3 && data[0] != 0 && data[1] == 0 && data[3] == 0:
		order = binary.LittleEndian
	case bytes.HasPrefix(data, []byte{0xfe, 0xff}), len(data) > 3 && data[0] == 0 && data[1] != 0 && data[2] == 0:
		order = binary.BigEndian
	default:
		return bytes.TrimPrefix(data, []byte("\ufeff"))
	}
	units := make([]uint16, len(data)/2)
	for i := range units {
		units[i] = order.Uint16(data[2*i:])
	}
	return bytes.TrimPrefix([]byte(string(utf16.Decode(units))), []byte("\ufeff"))
}

// envOf returns the variables in the text of an envFile, as VS Code reads it: NAME=value on each line, without
// variables. Other lines are skipped.
func envOf(s string) map[string]string {
	all := make(map[string]string)
	for line := range strings.SplitSeq(strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(s), "\n") {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		if rest, ok := strings.CutPrefix(line, "export "); ok {
			line = strings.TrimSpace(rest)
		}
		i := outsideQuotes(line, "=:")
		if i < 0 {
			continue
		}
		name, value := strings.TrimSpace(line[:i]), strings.TrimSpace(line[i+1:])
		if i := outsideQuotes(value, "#"); i >= 0 {
			value = strings.TrimSpace(value[:i])
		}
		if n := len(value); n > 1 && value[0] == value[n-1] && strings.IndexByte("\"'`", value[0]) >= 0 {
			quote := value[0]
			if value = value[1 : n-1]; quote == '"' {
				value = strings.NewReplacer(`\n`, "\n", `\r`, "\r").Replace(value)
			}
		}
		if name != "" && !strings.ContainsAny(name+value, "\x00") {
			all[name] = value
		}
	}
	return all
}

// outsideQuotes returns the index of the first of some characters that is not in quotes, or -1.
func outsideQuotes(s, chars string) int {
	quote := byte(0)
	for i := range len(s) {
		switch c := s[i]; {
		case quote != 0:
			if c == quote && s[i-1] != '\\' {
				quote = 0
			}
		case c == '"' || c == '\'' || c == '`':
			quote = c
		case strings.IndexByte(chars, c) >= 0:
			return i
		}
	}
	return -1
}

// Lines with which files in other languages than JSON begin.
var (
	tomlLine = regexp.MustCompile(`^(\[+[A-Za-z0-9_."' -]+\]+\s*(#.*)?|[A-Za-z0-9_.-]+\s*=.*)$`)
	yamlLine = regexp.MustCompile(`^(---.*|[A-Za-z0-9_.-]+:(\s.*)?)$`)
)

// isOther returns advice for a configuration file of a host that is not JSON; "" for any other file.
func (d *decoder) isOther() string {
	const as = `write its servers as JSON to another file, {"mcpServers": {"NAME": {"command": "…", "args": […], "env": {…}}}}, and give that`
	lines := strings.Split(string(d.data), "\n")
	first := slices.IndexFunc(lines, func(line string) bool {
		line = strings.TrimSpace(line)
		return line != "" && !strings.HasPrefix(line, "#")
	})
	line := ""
	if first >= 0 {
		line = strings.TrimSpace(lines[first])
	}
	ext := strings.ToLower(filepath.Ext(d.file))
	json := strings.HasPrefix(line, "{") || strings.HasPrefix(line, "/")
	switch {
	case json:
		return ""
	case ext == ".toml", tomlLine.MatchString(line) && ext != ".yaml" && ext != ".yml":
		return "this is TOML, as Codex has it, which is not read: " + as + ` (there enabled_tools is "includeTools", disabled_tools "excludeTools", http_headers "headers", and bearer_token_env_var = "X" the header "Authorization": "Bearer ${X}"; enabled = false is "enabled": false)`
	case ext == ".yaml", ext == ".yml", yamlLine.MatchString(line):
		return "this is YAML, as Continue and goose have it, which is not read: " + as + ` (there cmd of goose is "command", envs "env", uri "url" and available_tools "includeTools"; leave out what is not enabled, and write ${NAME} for ${{ secrets.NAME }})`
	}
	return ""
}

// unknown returns a hint with the members of a server that are not known, and may be misspelt, or "". path is the server's.
func (r *reader) unknown(path string) string {
	var all []string
	for _, m := range r.ignored {
		if name, ok := strings.CutPrefix(m.Member, path+"."); ok && !strings.Contains(name, ".") {
			all = append(all, strconv.Quote(name))
		}
	}
	if all == nil {
		return ""
	}
	return " (what is not known is ignored: " + strings.Join(all, ", ") + ")"
}

// elsewhere returns a hint for a file that has servers where none are looked for, or "".
func (r *reader) elsewhere() string {
	for _, m := range r.ignored {
		switch name := strings.ToLower(m.Member); {
		case name == "projects":
			return ` (the servers in "projects" of Claude Code are not read: copy those of one project)`
		case !strings.Contains(name, ".") && (strings.Contains(name, "mcp") || strings.Contains(name, "server") || name == "extensions"),
			strings.HasPrefix(name, "mcp.") || strings.HasSuffix(name, ".mcpservers"):
			return " (what is in \"" + m.Member + "\" is not read: move it there)"
		}
	}
	return ""
}
