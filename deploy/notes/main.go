// Command notes prints the section of CHANGELOG.md for a version, for the notes of a release:
//
//	go run ./deploy/notes v1.2.3
//	goreleaser release --clean --release-notes <(go run ./deploy/notes v1.2.3)
//
// "unreleased" is a version, too.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "notes: want a version, as in go run ./deploy/notes v1.2.3, or unreleased")
		os.Exit(2)
	}
	text, err := os.ReadFile("CHANGELOG.md")
	if err == nil {
		text, err = notes(text, os.Args[1])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "notes:", err)
		os.Exit(1)
	}
	_, _ = os.Stdout.Write(text)
}

// heading matches the heading of a version: "## 1.2.3 - 2026-01-02", "## [v1.2.3]" or "## Unreleased".
var heading = regexp.MustCompile(`(?m)^## +\[?([^\]\s]+)\]?.*$`)

// notes returns the section of a version, without its heading.
func notes(changelog []byte, version string) ([]byte, error) {
	want := strings.ToLower(strings.TrimPrefix(version, "v"))
	var has []string
	all := heading.FindAllSubmatchIndex(changelog, -1)
	for i, at := range all {
		name := string(changelog[at[2]:at[3]])
		has = append(has, name)
		if strings.ToLower(strings.TrimPrefix(name, "v")) != want {
			continue
		}
		end := len(changelog)
		if i+1 < len(all) {
			end = all[i+1][0]
		}
		section := strings.TrimSpace(string(changelog[at[1]:end]))
		if section == "" {
			return nil, fmt.Errorf("CHANGELOG.md says nothing of %s", name)
		}
		return []byte(section + "\n"), nil
	}
	return nil, fmt.Errorf("CHANGELOG.md has no section %s, but %s: begin one with ## %s - DATE", version, strings.Join(has, ", "), strings.TrimPrefix(version, "v"))
}
