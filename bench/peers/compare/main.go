// Command compare measures Holdfast against its peers, and against bare net/http that writes the same bytes. It builds and starts
// every server as a process of its own, drives all of them with the same clients, in turns, and prints the CPU and memory of each.
// With -clients it measures clients, each a process of its own, at the same servers. With -translate it measures gateways between
// clients and servers of the protocol's two eras. It needs Linux (/proc), and takes about two minutes.
//
//	cd bench/peers && go run ./compare [-clients | -translate [-npm DIR]] [-rounds 3] [-for 1s] [-held 2000] [-only TEXT] [-before DIR]
//
// With -before, it also measures the Holdfast in another checkout: so one run compares a change with the code before it.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	rounds := flag.Int("rounds", 3, "rounds of CPU measurements")
	each := flag.Duration("for", time.Second, "how long short calls are made in each round")
	held := flag.Int("held", 2000, "how many sessions and calls to hold for memory; 0 to skip")
	only := flag.String("only", "", "measure the first subject, and those whose name contains this")
	clients := flag.Bool("clients", false, "measure clients, not servers")
	inTurns := flag.Bool("turns", false, "measure short calls only, in short turns of all servers, and compare what was taken in the same round; with -rounds 50, say")
	eras := flag.Bool("translate", false, "measure gateways between clients and servers of both eras")
	npm := flag.String("npm", "", "where the npm packages of bench/peers/package.json are installed, for -translate; none: only Holdfast is measured")
	before := flag.String("before", "", "measure the Holdfast in this checkout as well, for servers only")
	flag.Parse()
	if *before != "" {
		addBefore()
	}
	first := subjects[0]
	subjects = slices.DeleteFunc(subjects, func(s subject) bool {
		return s.name != first.name && !strings.Contains(s.name, *only)
	})
	what := comparison{clients: *clients, turns: *inTurns, eras: *eras, npm: *npm, before: *before}
	if err := compare(what, *rounds, *each, *held); err != nil {
		fmt.Fprintf(os.Stderr, "compare: %v\n", err)
		os.Exit(1)
	}
}

// A comparison says what to measure: clients, short calls in turns, gateways (eras), or else servers.
type comparison struct {
	clients, turns, eras bool
	npm                  string
	before               string // a checkout of Holdfast, or ""
}

func compare(what comparison, rounds int, each time.Duration, held int) (err error) {
	dir, err := os.MkdirTemp("", "compare")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	programs := append(servers(), clientProgram)
	if what.eras {
		programs = []string{peers, gatewayProgram}
	}
	for _, pkg := range programs {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, binary(pkg)), pkg)
		if pkg == oursBefore {
			build = exec.Command("go", "build", "-o", filepath.Join(dir, binary(pkg)), ours)
			build.Dir = what.before
		}
		if pkg == gatewayProgram { // its requirements are in another module
			build.Dir = filepath.Join("..", "..")
		}
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			return fmt.Errorf("build %s: %w", pkg, err)
		}
	}
	if what.eras {
		return compareEras(os.Stdout, dir, what.npm, rounds, each)
	}
	if what.clients {
		return compareClients(os.Stdout, dir, rounds, each, held)
	}
	if what.turns {
		return turns(os.Stdout, dir, rounds)
	}
	f := newFigures()
	if err := measureCPU(f, dir, rounds, each); err != nil {
		return err
	}
	if held > 0 {
		for i := range subjects {
			if err := memoryRound(f, &subjects[i], dir, held); err != nil {
				return err
			}
		}
	}
	return f.print(os.Stdout, rounds)
}

// measureCPU measures all subjects in turns. Each turn has a process of its own: memory that a process keeps from an earlier turn
// would make its collections rarer.
func measureCPU(f figures, dir string, rounds int, each time.Duration) error {
	for range rounds {
		for i := range subjects {
			s := &subjects[i]
			p, err := start(filepath.Join(dir, binary(s.server)), s.args...)
			if err != nil {
				return err
			}
			err = cpuRound(f, s, p, each)
			p.stop()
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// binary returns the file name of a package's program.
func binary(pkg string) string { return strings.ReplaceAll(pkg, "/", "-") }
