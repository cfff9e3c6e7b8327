// Command check judges the results of a run of the official MCP conformance suite. The suite's own
// exit code ignores warnings and clients that crash, and a scenario that finds nothing to test
// counts as passed, so this command counts itself.
//
//	check server|client SPEC_VERSION[, WHAT] DIR
//
// "logins" in the place of a revision stands for ways to log in that no revision has. WHAT is "tasks" (the scenarios of that extension) or "streams" (all answers are streams).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// floors are the least numbers to reach, by side and revision: those that the official go-sdk
// reaches, as less would be a regression for its users.
//
// The go-sdk's server, with an event store, has one check more on 2025-11-25 (84) and on 2026-07-28
// (153): server-sse-streams-functional, which reads tools/list off event streams. Holdfast answers
// a list with plain JSON, which the suite calls optional and records without a verdict. With
// streams for all answers it has that check too.
var floors = map[string]struct{ scenarios, passed int }{
	"server 2025-06-18":          {27, 56},
	"server 2025-11-25":          {33, 83},
	"server 2026-07-28":          {40, 152},
	"server 2026-07-28, tasks":   {10, 44},
	"server 2025-11-25, streams": {33, 84},
	"server 2026-07-28, streams": {40, 153},
	"client 2025-06-18":          {5, 51},
	"client 2025-11-25":          {19, 203},
	"client 2026-07-28":          {33, 328},
	"client logins":              {6, 49},
}

func main() {
	if len(os.Args) != 4 || os.Args[1] != "server" && os.Args[1] != "client" {
		fmt.Fprintln(os.Stderr, "usage: check server|client SPEC_VERSION[, WHAT] DIR")
		os.Exit(2)
	}
	if err := judge(os.Stdout, os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "conformance of the %s, %s: %v\n", os.Args[1], os.Args[2], err)
		os.Exit(1)
	}
}

// A check is one entry of a scenario's checks.json.
type check struct {
	ID           string `json:"id"`
	Description  string `json:"description"`
	Status       string `json:"status"`
	ErrorMessage string `json:"errorMessage"`
}

// judge prints the checks that did not pass and a summary line, and returns an error unless all is
// well. A check counts if it passed, failed or warned: the suite also records checks without a
// verdict.
func judge(w io.Writer, side, version, dir string) error {
	scenarios, err := find(dir)
	if err != nil {
		return fmt.Errorf("find results: %w", err)
	}
	count := map[string]int{}
	unfinished := 0
	for _, scenario := range scenarios {
		if err := tally(w, side, dir, scenario, count); err != nil {
			return fmt.Errorf("read results: %w", err)
		}
		if side != "client" {
			continue
		}
		if err := finished(filepath.Join(dir, scenario)); err != nil {
			_, _ = fmt.Fprintf(w, "FAILURE %s: %v\n", scenario, err)
			unfinished++
		}
	}
	passed, failures, warnings := count["SUCCESS"], count["FAILURE"], count["WARNING"]
	_, _ = fmt.Fprintf(w, "conformance of the %s, %s: %d scenarios, %d checks, %d failures, %d warnings\n",
		side, version, len(scenarios), passed+failures+warnings, failures, warnings)

	floor, known := floors[side+" "+version]
	switch {
	case !known:
		return errors.New("no floor is known for this revision")
	case failures > 0 || warnings > 0:
		return fmt.Errorf("%d failures, %d warnings", failures, warnings)
	case unfinished > 0:
		return fmt.Errorf("%d clients did not finish", unfinished)
	case len(scenarios) < floor.scenarios:
		return fmt.Errorf("only %d of %d scenarios ran", len(scenarios), floor.scenarios)
	case passed < floor.passed:
		return fmt.Errorf("only %d of %d checks passed: some found nothing to test", passed, floor.passed)
	}
	return nil
}

// tally adds the checks of a scenario to count, by their status, and prints those that did not
// pass. A check that passes several times in one scenario of a client counts once: how often it
// runs is the client's choice.
func tally(w io.Writer, side, dir, scenario string, count map[string]int) error {
	checks, err := read(filepath.Join(dir, scenario, "checks.json"))
	if err != nil {
		return err
	}
	passed := map[string]bool{}
	for _, c := range checks {
		switch c.Status {
		case "SUCCESS":
			if side == "client" && passed[c.ID] {
				continue
			}
			passed[c.ID] = true
		case "FAILURE", "WARNING":
			_, _ = fmt.Fprintf(w, "%s %s: %s: %s\n    %s\n", c.Status, scenario, c.ID, c.Description, c.ErrorMessage)
		}
		count[c.Status]++
	}
	return nil
}

// find returns the directories below dir that have results. Some scenarios have a slash in their
// name.
func find(dir string) ([]string, error) {
	var found []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "checks.json" {
			return err
		}
		scenario, err := filepath.Rel(dir, filepath.Dir(path))
		found = append(found, scenario)
		return err
	})
	return found, err
}

func read(file string) ([]check, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var checks []check
	if err := json.Unmarshal(data, &checks); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return checks, nil
}

// finished returns an error unless the last line of a scenario's client on stdout begins with
// "done: ". The error has the client's last line on stderr.
func finished(scenario string) error {
	out, err := os.ReadFile(filepath.Join(scenario, "stdout.txt"))
	if err != nil {
		return err
	}
	if strings.HasPrefix(last(out), "done: ") {
		return nil
	}
	said, err := os.ReadFile(filepath.Join(scenario, "stderr.txt"))
	if err != nil {
		return err
	}
	return fmt.Errorf("the client did not finish; it said %q", last(said))
}

// last returns the last line of a text.
func last(text []byte) string {
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}
