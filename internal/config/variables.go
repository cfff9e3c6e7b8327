package config

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Options say where the values of variables come from. The zero value takes them from the
// environment, and has no inputs.
type Options struct {
	// Workspace is ${workspaceFolder}; by default the folder that the file is in, or the
	// one above it if that is .vscode, .cursor or the like.
	Workspace string
	// Env looks a variable of the environment up; nil: [os.LookupEnv].
	Env func(name string) (string, bool)
	// Input returns the value of an input of VS Code. Nil, or an error: there is none.
	Input func(Input) (string, error)
}

// An Input is a value that VS Code asks for (its "inputs" of type promptString and
// pickString).
type Input struct {
	ID, Description, Default string
	Password                 bool
	Options                  []string // the possible values; nil: any text
}

// opencodeVariable matches a variable of opencode.
var opencodeVariable = regexp.MustCompile(`^\{(env|file):[^{}]*\}`)

// plainVariable matches $NAME.
var plainVariable = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*`)

// variableName matches the name of a variable of the environment.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expander puts in the values of variables.
type expander struct {
	*decoder
	opts   Options
	inputs map[string]hostInput

	// Of the server that is read:
	kind  kind
	env   named[text]       // its own variables
	own   map[string]string // those of its envFile
	using []string          // variables of env that are being expanded
	lacks []error           // values that are not there
}

// begin begins a server.
func (e *expander) begin(h *hostServer, of kind) {
	e.kind, e.env, e.own, e.using, e.lacks = of, slices.Concat(h.Command.Env, h.Environ, h.Env), nil, nil, nil
}

// lackf notes a value that is not there, for which the server is left out.
func (e *expander) lackf(at int, format string, args ...any) {
	line, column := e.place(at)
	e.lacks = append(e.lacks, &Error{File: e.file, Line: line, Column: column, Text: fmt.Sprintf(format, args...)})
}

// ownValue returns the value of one of the server's own variables. In that value, the variable's name stands
// for the variable of the environment.
func (e *expander) ownValue(v member[text]) string {
	e.using = append(e.using, v.Name)
	defer func() { e.using = e.using[:len(e.using)-1] }()
	return e.expand(v.Value)
}

// ownVariable returns one of the server's own variables.
func (e *expander) ownVariable(name string) (string, bool) {
	if slices.Contains(e.using, name) {
		return "", false
	}
	for _, v := range slices.Backward(e.env) {
		if v.Name == name {
			return e.ownValue(v), true
		}
	}
	value, ok := e.own[name]
	return value, ok
}

// expand returns a text with its variables.
func (e *expander) expand(t text) string { return e.expanded(t.at, t.value) }

// expanded returns a text, or the default of a variable, with its variables. at is its place.
func (e *expander) expanded(at int, s string) string {
	var out strings.Builder
	for s != "" {
		n := e.variableAt(s)
		if n == 0 {
			out.WriteByte(s[0])
			s = s[1:]
			continue
		}
		value, err := e.lookUp(at, s[:n])
		switch {
		case errors.Is(err, errShell):
			value = s[:n]
		case err != nil:
			name, _, _ := strings.Cut(s[:n], ":-") // the default may be a secret
			if len(name) < n {
				name += "}"
			}
			e.lackf(at, "%s: %v", name, err)
		}
		out.WriteString(value)
		s = s[n:]
	}
	return out.String()
}

// variableAt returns the length of the variable that a text begins with, or 0. A default may have
// variables in it.
func (e *expander) variableAt(s string) int {
	switch {
	case e.kind == ofOpencode:
		return len(opencodeVariable.FindString(s))
	case s[0] != '$':
		return 0
	case strings.HasPrefix(s, "${{"): // of Continue
		if end := strings.Index(s, "}}"); end > 0 {
			return end + 2
		}
		return 0
	case !strings.HasPrefix(s, "${"):
		if e.kind == ofGemini {
			return len(plainVariable.FindString(s))
		}
		return 0
	}
	depth := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "${"):
			depth++
			i++
		case s[i] == '{':
			return 0
		case s[i] == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return 0
}

// lookUp returns the value of a variable as it stands in a text.
func (e *expander) lookUp(at int, whole string) (string, error) {
	if e.kind == ofOpencode {
		if path, isFile := strings.CutPrefix(whole, "{file:"); isFile {
			return e.contents(strings.TrimSuffix(path, "}"))
		}
		return e.environment(at, strings.TrimSuffix(strings.TrimPrefix(whole, "{env:"), "}"), false)
	}
	if strings.HasPrefix(whole, "${{") {
		return "", errors.New("only Continue knows this kind of variable: write ${NAME}, and set NAME in the environment")
	}
	if name, braced := strings.CutPrefix(whole, "${"); braced {
		return e.value(at, strings.TrimSuffix(name, "}"))
	}
	return e.environment(at, whole[1:], true)
}

// contents returns the content of a file, for opencode.
func (e *expander) contents(path string) (string, error) {
	if rest, ok := strings.CutPrefix(path, "~/"); ok {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", err
		}
		path = filepath.Join(home, rest)
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(e.file), path)
	}
	data, err := os.ReadFile(path)
	return strings.TrimSpace(string(plainText(data))), err
}

// errShell says that a text which looks like a variable is for a shell.
var errShell = errors.New("for a shell")

// shellText matches a parameter of a shell with an operation on it, such as ${1:-d}, ${@}, ${#x} or ${x%.*}: no
// host has that. A text behind a colon makes another kind of variable if it begins with a letter.
var shellText = regexp.MustCompile(`(?s)^[#!]?([0-9]+|[@*#?$!-]|[A-Za-z_][A-Za-z0-9_]*)(\[[^\]]*\])?([-+=?%#/^,@~].*|:[^A-Za-z_].*)?$`)

// value returns the value of a variable.
func (e *expander) value(at int, name string) (string, error) {
	kind, rest, qualified := strings.Cut(name, ":")
	switch {
	case qualified && kind == "env":
		return e.environment(at, rest, false)
	case qualified && kind == "input":
		return e.input(rest)
	case qualified && variableName.MatchString(kind) && strings.HasPrefix(rest, "-"):
		return e.environment(at, name, true)
	case !variableName.MatchString(name) && name != "/" && shellText.MatchString(name):
		return "", errShell
	case qualified:
		return "", fmt.Errorf("only some hosts know this kind of variable: write its value in its place, or use ${env:NAME}")
	}
	switch name {
	case "workspaceFolder", "workspaceRoot":
		return e.opts.Workspace, nil
	case "workspaceFolderBasename":
		return filepath.Base(e.opts.Workspace), nil
	case "userHome":
		return os.UserHomeDir()
	case "cwd":
		return os.Getwd()
	case "pathSeparator", "/":
		return string(filepath.Separator), nil
	}
	if !variableName.MatchString(name) {
		return "", fmt.Errorf("this is no variable: want ${NAME}, ${NAME:-default}, ${env:NAME} or ${input:ID}")
	}
	return e.environment(at, name, true)
}

// environment returns a variable of the server's own, or of the environment; own says that the server's own
// counts more. It may have a default ("NAME:-default").
func (e *expander) environment(at int, name string, own bool) (string, error) {
	name, fallback, has := strings.Cut(name, ":-")
	from := []func(string) (string, bool){e.opts.Env, e.ownVariable}
	if own {
		slices.Reverse(from)
	}
	for _, look := range from {
		if value, ok := look(name); ok && (value != "" || !has) {
			return value, nil
		}
	}
	switch {
	case has:
		return e.expanded(at, fallback), nil
	case e.kind == ofOpencode:
		return "", fmt.Errorf("the environment variable %s is not set: set it", name)
	}
	return "", fmt.Errorf("the environment variable %s is not set: set it, or give a default with ${%s:-default}", name, name)
}

// input returns a value that VS Code would ask for.
func (e *expander) input(id string) (string, error) {
	in, ok := e.inputs[id]
	if !ok {
		return "", fmt.Errorf("there is no such input: add {\"type\": \"promptString\", \"id\": %q} to \"inputs\"", id)
	}
	if in.Type.value != "promptString" && in.Type.value != "pickString" {
		return "", fmt.Errorf("inputs of type %q exist in VS Code only: use promptString", in.Type.value)
	}
	ask := Input{ID: id, Description: in.Description.value, Password: in.Password}
	if in.Default != nil {
		ask.Default = in.Default.value
	}
	for _, o := range in.Options {
		ask.Options = append(ask.Options, o.value)
	}
	if e.opts.Input == nil {
		return "", fmt.Errorf("there is nobody to ask for this input")
	}
	return e.opts.Input(ask)
}

// workspaceOf returns the folder of a workspace by the place of its file.
func workspaceOf(file string) string {
	abs, err := filepath.Abs(file)
	if err != nil {
		return ""
	}
	dir := filepath.Dir(abs)
	if in := filepath.Base(filepath.Dir(dir)); in == ".kiro" || in == ".junie" { // .kiro/settings/mcp.json
		dir = filepath.Dir(dir)
	}
	if base := filepath.Base(dir); len(base) > 1 && base[0] == '.' {
		return filepath.Dir(dir)
	}
	return dir
}
