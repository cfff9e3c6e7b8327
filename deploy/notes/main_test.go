package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestNotes(t *testing.T) {
	t.Parallel()
	const changelog = "# Changelog\n\nIntro.\n\n## Unreleased\n\n### Added\n\n- new\n\n## [1.2.0] - 2026-01-02\n\n### Fixed\n\n- a bug\n\n## v1.1.0-rc.1\n\n- first\n\n## 1.0.0\n"
	for version, want := range map[string]string{
		"unreleased": "### Added\n\n- new\n", "1.2.0": "### Fixed\n\n- a bug\n", "v1.2.0": "### Fixed\n\n- a bug\n", "v1.1.0-rc.1": "- first\n", "1.1.0-rc.1": "- first\n",
	} {
		if got, err := notes([]byte(changelog), version); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want %q", version, got, err, want)
		}
	}
	for version, want := range map[string]string{"v2.0.0": "no section v2.0.0, but Unreleased, 1.2.0, v1.1.0-rc.1, 1.0.0: begin one with ## 2.0.0 - DATE", "1.2": "no section", "1.0.0": "says nothing"} {
		if got, err := notes([]byte(changelog), version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %q, %v; want %s", version, got, err, want)
		}
	}
	text, err := os.ReadFile(filepath.Join("..", "..", "CHANGELOG.md"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := notes(text, "Unreleased"); err != nil || !strings.Contains(string(got), "### Added") || strings.Contains(string(got), "\n## ") {
		t.Errorf("of CHANGELOG.md: %q, %v", got, err)
	}
}
