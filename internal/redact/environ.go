package redact

import "strings"

// Environ returns an environment for the program of a server: without the variables that configure Holdfast
// (HOLDFAST_*), and without those with the credentials for Holdfast's traces. It may change env.
func Environ(env []string) []string {
	kept := env[:0]
	for _, v := range env {
		name, value, _ := strings.Cut(v, "=")
		switch {
		case strings.HasPrefix(name, "HOLDFAST_"):
		case strings.HasPrefix(name, "OTEL_EXPORTER_") && (strings.HasSuffix(name, "HEADERS") || userinfo.MatchString(value)):
		default:
			kept = append(kept, v)
		}
	}
	return kept
}
