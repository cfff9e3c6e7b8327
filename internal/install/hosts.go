package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Scopes of a file.
const (
	User    = "user"    // for all projects of the user
	Project = "project" // for the project in the present directory
)

// A Host is a program that reads a file with servers.
type Host struct {
	Name, Title string
	aliases     []string
	// user has the files for all projects, by operating system; "" stands for systems that are not named. The first
	// that exists is used, or else the first.
	user map[string][]string
	// project is the file of a project, "": there is none.
	project string
	// programs of the host: with one of them in the PATH it is installed, whether or not its folder is there.
	programs []string
	// folder exists if the host is installed; "": the folder of the file does.
	folder string
	form   form
}

// A form says how a host writes servers.
type form struct {
	toml    bool
	section []string // the members, from the root, in which servers are
	// typed is the member "type" of a server, "": there is none.
	typed string
	// listed: the command and its arguments are one list.
	listed bool
	env    string // the member for variables of the environment
	// variable is the form in which a value names a variable of the host's environment, with NAME for its name; "": there is none.
	variable string
	// inherits: the server gets the whole environment of the host.
	inherits bool
	// names are the names that a server may have; nil: any.
	names *regexp.Regexp
}

// plainNames matches the names that strict hosts take.
var plainNames = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// hosts are in the order in which they are listed. The paths are from the documentation of each host: "~" is the home
// directory, and ${A:-B} the variable A of the environment, or else B.
var hosts = []*Host{
	{
		Name: "claude-desktop", Title: "Claude Desktop",
		user: map[string][]string{
			"darwin":  {"~/Library/Application Support/Claude/claude_desktop_config.json"},
			"windows": {"${APPDATA:-~/AppData/Roaming}/Claude/claude_desktop_config.json"},
			"":        {"${XDG_CONFIG_HOME:-~/.config}/Claude/claude_desktop_config.json"},
		},
		form: form{section: []string{"mcpServers"}, env: "env"},
	},
	{
		Name: "claude-code", Title: "Claude Code",
		user:    map[string][]string{"": {"${CLAUDE_CONFIG_DIR:-~}/.claude.json"}},
		project: ".mcp.json", programs: []string{"claude"}, folder: "${CLAUDE_CONFIG_DIR:-~/.claude}",
		form: form{section: []string{"mcpServers"}, typed: "stdio", env: "env", variable: "${NAME}", inherits: true, names: plainNames},
	},
	{
		Name: "cursor", Title: "Cursor",
		user:    map[string][]string{"": {"~/.cursor/mcp.json"}},
		project: ".cursor/mcp.json", programs: []string{"cursor", "cursor-agent"},
		form: form{section: []string{"mcpServers"}, typed: "stdio", env: "env", variable: "${env:NAME}"},
	},
	{
		Name: "vscode", Title: "VS Code", aliases: []string{"code", "visual-studio-code"},
		user: map[string][]string{
			"darwin":  {"~/Library/Application Support/Code/User/mcp.json"},
			"windows": {"${APPDATA:-~/AppData/Roaming}/Code/User/mcp.json"},
			"":        {"${XDG_CONFIG_HOME:-~/.config}/Code/User/mcp.json"},
		},
		project: ".vscode/mcp.json", programs: []string{"code"},
		form: form{section: []string{"servers"}, typed: "stdio", env: "env", variable: "${env:NAME}"},
	},
	{
		Name: "windsurf", Title: "Windsurf",
		user:     map[string][]string{"": {"~/.codeium/windsurf/mcp_config.json"}},
		programs: []string{"windsurf"},
		form:     form{section: []string{"mcpServers"}, env: "env", variable: "${env:NAME}"},
	},
	{
		Name: "zed", Title: "Zed",
		user: map[string][]string{
			"darwin":  {"~/.config/zed/settings.json"},
			"windows": {"${APPDATA:-~/AppData/Roaming}/Zed/settings.json"},
			"":        {"${XDG_CONFIG_HOME:-~/.config}/zed/settings.json"},
		},
		project: ".zed/settings.json", programs: []string{"zed", "zeditor"},
		form: form{section: []string{"context_servers"}, env: "env", inherits: true},
	},
	{
		Name: "gemini", Title: "the Gemini CLI", aliases: []string{"gemini-cli"},
		user:    map[string][]string{"": {"${GEMINI_CLI_HOME:-~}/.gemini/settings.json"}},
		project: ".gemini/settings.json", programs: []string{"gemini"},
		form: form{section: []string{"mcpServers"}, env: "env", variable: "$NAME"},
	},
	{
		Name: "codex", Title: "Codex", aliases: []string{"codex-cli"},
		user:    map[string][]string{"": {"${CODEX_HOME:-~/.codex}/config.toml"}},
		project: ".codex/config.toml", programs: []string{"codex"},
		form: form{toml: true, section: []string{"mcp_servers"}, env: "env", names: plainNames},
	},
	{
		Name: "opencode", Title: "opencode", aliases: []string{"open-code"},
		user: map[string][]string{"": {
			"${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.json",
			"${XDG_CONFIG_HOME:-~/.config}/opencode/opencode.jsonc",
			"${XDG_CONFIG_HOME:-~/.config}/opencode/config.json",
		}},
		project: "opencode.json", programs: []string{"opencode"},
		form: form{section: []string{"mcp"}, typed: "local", listed: true, env: "environment", variable: "{env:NAME}", inherits: true},
	},
}

// Names returns the names of all hosts.
func Names() (names []string) {
	for _, h := range hosts {
		names = append(names, h.Name)
	}
	return names
}

// Find returns the host of a name. Case, spaces and hyphens do not matter.
func Find(name string) (*Host, error) {
	plain := func(s string) string {
		return strings.ToLower(strings.NewReplacer("-", "", "_", "", " ", "", ".", "").Replace(s))
	}
	want := plain(name)
	var near []string
	for _, h := range hosts {
		all := append([]string{h.Name, h.Title}, h.aliases...)
		if slices.ContainsFunc(all, func(s string) bool { return plain(s) == want }) {
			return h, nil
		}
		if want != "" && slices.ContainsFunc(all, func(s string) bool {
			return strings.HasPrefix(plain(s), want) || strings.HasPrefix(want, plain(s)) || changes(plain(s), want) <= 2
		}) {
			near = append(near, h.Name)
		}
	}
	hint := ""
	if len(near) > 0 {
		hint = fmt.Sprintf(": did you mean %s?", strings.Join(near, " or "))
	}
	return nil, fmt.Errorf("host %q is not known%s (known are %s)", name, hint, strings.Join(Names(), ", "))
}

// changes returns how many characters must be put in, taken out or replaced to make b of a.
func changes(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		before := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := before
			if a[i] != b[j] {
				replaced++
			}
			before = row[j+1]
			row[j+1] = min(replaced, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// A System is the machine on which files are looked for.
type System struct {
	OS  string // as [runtime.GOOS]
	Env func(name string) string
	Dir string // of the project
	// Has reports whether a program is in the PATH.
	Has func(program string) bool
}

// Here returns the system on which this process runs.
func Here() *System {
	dir, _ := os.Getwd()
	return &System{OS: runtime.GOOS, Env: os.Getenv, Dir: dir, Has: func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	}}
}

// expand expands a path of the table hosts.
func (s *System) expand(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "${"); ok {
		both, rest, _ := strings.Cut(rest, "}")
		name, other, _ := strings.Cut(both, ":-")
		if value := s.Env(name); value != "" && (name != "XDG_CONFIG_HOME" || filepath.IsAbs(value)) {
			other = value
		}
		path = other + rest
	}
	if rest, ok := strings.CutPrefix(path, "~"); ok {
		variable := "HOME"
		if s.OS == "windows" {
			variable = "USERPROFILE"
		}
		home := s.Env(variable)
		if home == "" {
			return "", fmt.Errorf("%s is not set: name the file with --file", variable)
		}
		path = home + rest
	}
	if s.OS == "windows" {
		return strings.ReplaceAll(path, "/", `\`), nil
	}
	return filepath.Clean(path), nil
}

// HasScope reports whether the host has files of a scope.
func (h *Host) HasScope(scope string) bool { return scope == User || h.project != "" }

// File returns the file of a scope. The host need not have it yet.
func (h *Host) File(s *System, scope string) (string, error) {
	if scope == Project {
		if h.project == "" {
			return "", fmt.Errorf("%s has no file for a project: leave out --scope project", h.Title)
		}
		return filepath.Join(s.Dir, filepath.FromSlash(h.project)), nil
	}
	all, ok := h.user[s.OS]
	if !ok {
		all = h.user[""]
	}
	first := ""
	for _, path := range all {
		file, err := s.expand(path)
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(file); err == nil {
			return file, nil
		}
		if first == "" {
			first = file
		}
	}
	return first, nil
}

// Missing returns an error if the host does not seem to be installed.
func (h *Host) Missing(s *System, file string) error {
	folder := filepath.Dir(file)
	if h.folder != "" {
		var err error
		if folder, err = s.expand(h.folder); err != nil {
			return err
		}
	}
	for _, path := range []string{file, folder} {
		if _, err := os.Stat(path); err == nil {
			return nil
		}
	}
	if slices.ContainsFunc(h.programs, s.Has) {
		return nil
	}
	return fmt.Errorf("%s is not installed, it seems: there is no %s. Start it once, or write the file anyway with --file '%s'", h.Title, folder, file)
}

// Variable returns the text by which the file names a variable of the host's environment.
func (h *Host) Variable(name string) (string, error) {
	switch {
	case h.form.variable != "":
	case h.form.toml || h.form.inherits:
		return "", fmt.Errorf("%s has no variables in the values of its file: give the value of %s, or set HOLDFAST_HEADER to the whole header where %s is started, and give --env HOLDFAST_HEADER in place of --header", h.Title, name, h.Title)
	default:
		return "", fmt.Errorf("%s has no variables in its file: give the value of %s", h.Title, name)
	}
	return strings.Replace(h.form.variable, "NAME", name, 1), nil
}

// CheckName returns an error if the host takes no server of a name.
func (h *Host) CheckName(name string) error {
	switch {
	case name == "" || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r == 0x7f || r == '\ufffd' }):
		return fmt.Errorf("the name %q is no name for a server: give another with --name", name)
	case h.form.names != nil && !h.form.names.MatchString(name):
		return fmt.Errorf("%s takes no server with the name %q: want letters, digits, - and _ (--name)", h.Title, name)
	}
	return nil
}
