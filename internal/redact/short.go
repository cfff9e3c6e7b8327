package redact

import (
	"path"
	"regexp"
	"slices"
	"strings"
)

// passwordFlags are short options for a password, a key or a token in many commands, and for a port, a package or a name in others. isPlain
// tells them apart by the value. The value of -p is a password even if it is an ordinary word.
var passwordFlags = []string{"-p", "-P", "-k", "-t", "-a", "-s", "-w"}

// userFlags are options with a user and a password as USER:PASSWORD.
var userFlags = []string{"-u", "-U", "--user", "--proxy-user", "--basic", "--creds"}

// runners are commands that start a package. An option -p before the package's own arguments names a package.
var runners = []string{"npx", "pnpm", "pnpx", "bunx", "bun", "npm", "yarn", "uv", "uvx", "pipx"}

var (
	// numeric matches a port, also in the form of containers (8080:80/tcp), an address with a port, a number, or a version.
	numeric = regexp.MustCompile(`^[0-9.:,\[\]<>=~^-]*[0-9][0-9.:,\]-]*(/(tcp|udp))?$`)
	// pathLike matches a path or a package: /etc/x, ./x, C:\x, @scope/name, image/name:tag.
	pathLike = regexp.MustCompile(`^(\.{0,2}/|~/|[A-Za-z]:[\\/]|@[a-z0-9._-]+/|[a-z0-9._-]+/)[A-Za-z0-9@._:/\\ -]*$`)
	// ordinary matches words of small letters only.
	ordinary = regexp.MustCompile(`^[a-z]+([_-][a-z]+)*$`)
	// longName matches long names of options with one dash, such as -port and -path.
	longName = regexp.MustCompile(`^-(p(ort|ath|re|ro|ack|rint|ub|lug|aram|arallel|id|lat|ool|ing|ipe|ull|ush|ut|age|eer|kg|oll)|P[a-z])[a-z-]*$`)
)

// isPlain reports whether the value of a short option is clearly not a password.
func isPlain(flag, value string) bool {
	switch {
	case value == "", isFlag(value), numeric.MatchString(value), strings.Contains(value, "://"):
		return true
	case pathLike.MatchString(value):
		return len(value) < leastSegment || strings.Count(value, "/") > 1 || strings.ToLower(value) == value
	}
	return flag != "-p" && flag != "-P" && ordinary.MatchString(value)
}

// short returns the value of an option in userFlags or passwordFlags with its password hidden, and true. It returns false for other options, and
// for values without a password.
func short(flag, value string) (string, bool) {
	switch {
	case slices.Contains(userFlags, flag):
		user, password, ok := strings.Cut(value, ":")
		if !ok || numeric.MatchString(value) || strings.Contains(value, "://") {
			return "", false
		}
		return user + ":" + hidden(password), true
	case slices.Contains(passwordFlags, flag) && !isPlain(flag, value):
		return hidden(value), true
	}
	return "", false
}

// attached returns an argument that is a short option with its value (-pSECRET, -uUSER:PASSWORD, -HName: value) with its secret hidden, and
// true; false for others.
func attached(arg string) (string, bool) {
	if len(arg) < 3 || arg[0] != '-' || arg[1] == '-' {
		return "", false
	}
	flag, value := arg[:2], arg[2:]
	switch {
	case flag == "-H" && strings.ContainsAny(value, ":="):
		return flag + header(value), true
	case flag == "-u" || flag == "-U":
		shown, ok := short(flag, value)
		return flag + shown, ok
	case flag != "-p" && flag != "-P", longName.MatchString(arg), strings.ContainsAny(value, "= \t\n"):
		return "", false
	}
	shown, ok := short(flag, value)
	return flag + shown, ok
}

// packages returns the index of the package in the arguments of a runner. Before it, -p names a package. It returns 0 for other commands.
func packages(args []string) int {
	if len(args) == 0 || !slices.Contains(runners, strings.TrimSuffix(path.Base(strings.ReplaceAll(args[0], `\`, "/")), ".cmd")) {
		return 0
	}
	for i := 1; i < len(args); i++ {
		if !isFlag(args[i]) && args[i-1] != "-p" && args[i-1] != "--package" && args[i-1] != "--from" && args[i] != "exec" && args[i] != "dlx" && args[i] != "run" && args[i] != "x" {
			return i
		}
	}
	return len(args)
}

// option matches an option and its value in a shell command.
var option = regexp.MustCompile(`(^|\s)(--?[A-Za-z][A-Za-z0-9_-]*)(\s+|=)("[^"]*"|'[^']*'|[^\s"'-][^\s"']*)`)

// shell returns a shell command without the values of options that are credentials.
func shell(text string) string {
	if !strings.ContainsAny(text, " \t\n") {
		return text
	}
	return option.ReplaceAllStringFunc(text, func(found string) string {
		part := option.FindStringSubmatch(found)
		flag, value, quote := part[2], part[4], ""
		if value[0] == '"' || value[0] == '\'' {
			quote = value[:1]
			value = value[1 : len(value)-1]
		}
		shown, secret := short(flag, value)
		switch {
		case secret:
		case isHeader(flag):
			shown = header(value)
		case Secretive(flag):
			shown = hidden(value)
		default:
			return found
		}
		return part[1] + flag + part[3] + quote + shown + quote
	})
}
