package config

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
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
	Options                  []string // one of which it is; nil: any text
}

// variable is one in a text: ${NAME}, ${NAME:-default}, ${env:NAME}, ${input:ID} and others.
var variable = regexp.MustCompile(`\$\{([^{}]*)\}`)

// plainVariable is $NAME.
var plainVariable = regexp.MustCompile(`^\$[A-Za-z_][A-Za-z0-9_]*`)

// name is what the name of a variable of the environment looks like.
var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expander puts in the values of variables.
type expander struct {
	*decoder
	opts   Options
	inputs map[string]hostInput
	gemini bool // the file is one of the Gemini CLI, which has $NAME too
}

// expand returns a text with its variables.
func (e *expander) expand(t text) string { return e.expanded(t.at, t.value) }

// expanded returns a text, or the default of a variable, with its variables. at is its place.
func (e *expander) expanded(at int, s string) string {
	var out strings.Builder
	for {
		i := strings.IndexByte(s, '$')
		if i < 0 {
			out.WriteString(s)
			return out.String()
		}
		out.WriteString(s[:i])
		s = s[i:]
		n := e.variableAt(s)
		if n == 0 {
			out.WriteByte('$')
			s = s[1:]
			continue
		}
		value, err := e.lookUp(at, s[:n])
		if err != nil {
			e.failf(at, "%s: %v", s[:n], err)
		}
		out.WriteString(value)
		s = s[n:]
	}
}

// variableAt returns the length of the variable that a text begins with, or 0. A default may have
// variables in it.
func (e *expander) variableAt(s string) int {
	if !strings.HasPrefix(s, "${") {
		if e.gemini {
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
	if name, braced := strings.CutPrefix(whole, "${"); braced {
		return e.value(at, strings.TrimSuffix(name, "}"))
	}
	return e.environment(at, whole[1:])
}

// value returns the value of a variable.
func (e *expander) value(at int, name string) (string, error) {
	kind, rest, qualified := strings.Cut(name, ":")
	switch {
	case qualified && kind == "env":
		return e.environment(at, rest)
	case qualified && kind == "input":
		return e.input(rest)
	case qualified && variableName.MatchString(kind) && strings.HasPrefix(rest, "-"):
		return e.environment(at, name)
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
	return e.environment(at, name)
}

// environment returns a variable of the environment, which may have a default ("NAME:-default").
func (e *expander) environment(at int, name string) (string, error) {
	name, fallback, has := strings.Cut(name, ":-")
	value, ok := e.opts.Env(name)
	switch {
	case ok && (value != "" || !has):
		return value, nil
	case has:
		return e.expanded(at, fallback), nil
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
	if base := filepath.Base(dir); len(base) > 1 && base[0] == '.' {
		return filepath.Dir(dir)
	}
	return dir
}
