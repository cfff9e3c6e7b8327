package main

import (
	"os"
	"strings"

	"holdfast/internal/redact"
	"holdfast/internal/terminal"
)

// outputs returns stdout and stderr. Errors and the log go to stderr, without the passwords
// that are in the command line and the environment.
func outputs(args []string) (stdout, stderr *terminal.Output) {
	return terminal.NewOutput(os.Stdout, nil), terminal.NewOutput(os.Stderr, given(args, os.Environ()).Text)
}

// given returns the secrets of all URLs in the command line and the environment, wherever
// they stand: a user may give a URL where another value belongs.
func given(args, environ []string) *redact.Secrets {
	urls := args
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if strings.HasPrefix(name, "HOLDFAST_") || strings.HasSuffix(strings.ToLower(name), "_proxy") {
			urls = append(urls[:len(urls):len(urls)], value)
		}
	}
	return redact.Of(urls, "creds", "ca", "cert", "key")
}

// quoted returns a text as a word of a shell's command line.
func quoted(text string) string {
	if text != "" && !strings.ContainsFunc(text, func(r rune) bool {
		return !strings.ContainsRune("-_./:=@%+,~", r) && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}) && text[0] != '~' {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}
