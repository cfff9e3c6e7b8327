// Command check judges what a run of the official MCP conformance suite left
// behind. The suite's own exit code passes over warnings, and a scenario that
// finds nothing to test counts as passed, so this counts for itself.
//
//	check SPEC_VERSION DIR
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// floors is what has to be reached, by revision: what the official go-sdk reaches
// with an event store, for anything less is a regression to whoever comes from
// there. The one check less (it has 84) is server-sse-streams-functional, which
// reads tools/list off event streams: ours answers a list with plain JSON, which
// the suite calls optional and records without a verdict.
var floors = map[string]struct{ scenarios, passed int }{
	"2025-06-18": {27, 56},
	"2025-11-25": {33, 83},
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: check SPEC_VERSION DIR")
		os.Exit(2)
	}
	if err := judge(os.Stdout, os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "conformance %s: %v\n", os.Args[1], err)
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

// judge prints what did not pass and a summary line, and returns an error unless
// all is well. A check is counted if it passed, failed or warned: the suite also
// records what it merely saw.
func judge(w io.Writer, version, dir string) error {
	files, err := filepath.Glob(filepath.Join(dir, "*", "checks.json"))
	if err != nil {
		return fmt.Errorf("find results: %w", err)
	}
	count := map[string]int{}
	for _, file := range files {
		checks, err := read(file)
		if err != nil {
			return fmt.Errorf("read results: %w", err)
		}
		for _, c := range checks {
			count[c.Status]++
			if c.Status == "FAILURE" || c.Status == "WARNING" {
				_, _ = fmt.Fprintf(w, "%s %s: %s: %s\n    %s\n",
					c.Status, filepath.Base(filepath.Dir(file)), c.ID, c.Description, c.ErrorMessage)
			}
		}
	}
	passed, failures, warnings := count["SUCCESS"], count["FAILURE"], count["WARNING"]
	_, _ = fmt.Fprintf(w, "conformance %s: %d scenarios, %d checks, %d failures, %d warnings\n",
		version, len(files), passed+failures+warnings, failures, warnings)

	floor, known := floors[version]
	switch {
	case !known:
		return errors.New("no floor is known for this revision")
	case failures > 0 || warnings > 0:
		return fmt.Errorf("%d failures, %d warnings", failures, warnings)
	case len(files) < floor.scenarios:
		return fmt.Errorf("only %d of %d scenarios ran", len(files), floor.scenarios)
	case passed < floor.passed:
		return fmt.Errorf("only %d of %d checks passed: some found nothing to test", passed, floor.passed)
	}
	return nil
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
