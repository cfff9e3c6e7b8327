package main

import (
	"os"
	"strings"

	"holdfast/internal/redact"
	"holdfast/internal/terminal"
)

// outputs returns stdout and stderr. Stderr, where errors and the log go, has none of
// the passwords that the command line and the environment give.
func outputs(args []string) (stdout, stderr *terminal.Output) {
	return terminal.NewOutput(os.Stdout, nil), terminal.NewOutput(os.Stderr, given(args, os.Environ()).Text)
}

// given returns the secrets of the URLs that the command line and the environment may
// hold, wherever they stand: a URL where another flag's value was meant is as secret.
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
