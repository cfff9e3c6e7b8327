// Command pack makes the packages for npm, Python and desktop hosts from the archives that .goreleaser.yaml makes for a release:
//
//	go run ./deploy/pack [-out DIRECTORY] dist
//
// It writes, to dist/packages unless -out is given,
//
//   - holdfast-VERSION.tgz, the npm package that users name. It has no program: each platform's is in an optional
//     package, of which npm installs the one that fits (holdfast-linux-x64 and so on);
//   - holdfast-VERSION-py3-none-PLATFORM.whl, a wheel for each platform;
//   - holdfast-VERSION.mcpb, a bundle for desktop hosts, with the URL of a server as its setting.
//
// The packages run and download nothing when they are installed. Their version is that of the archives, and the same archives give the
// same bytes.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(stdout io.Writer, args []string) error {
	flags := flag.NewFlagSet("pack", flag.ContinueOnError)
	out := flags.String("out", "", "`directory` for the packages (default: packages in that of the archives)")
	partial := flags.Bool("partial", false, "pack what is there, even if a platform is missing")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() != 1 {
		return errors.New("want the directory with the archives, as in go run ./deploy/pack dist")
	}
	dist := flags.Arg(0)
	if *out == "" {
		*out = filepath.Join(dist, "packages")
	}
	r, err := readRelease(dist)
	if err != nil {
		return err
	}
	if missing := r.missing(); missing != nil && !*partial {
		return fmt.Errorf("%s has no archive for %s: build it, or leave it out with -partial", dist, missing)
	}
	kinds := []func() ([]file, error){r.npm, r.wheels, r.mcpb}
	made, failed := make([][]file, len(kinds)), make([]error, len(kinds))
	var all sync.WaitGroup // compressing takes seconds
	for i, kind := range kinds {
		all.Go(func() { made[i], failed[i] = kind() })
	}
	all.Wait()
	if err := errors.Join(failed...); err != nil {
		return err
	}
	if err := os.MkdirAll(*out, 0o755); err != nil {
		return err
	}
	for _, f := range slices.Concat(made...) {
		name := filepath.Join(*out, f.name)
		if err := os.WriteFile(name, f.data, 0o644); err != nil { //nolint:gosec // it is to be published
			return err
		}
		fmt.Fprintln(stdout, name)
	}
	return nil
}

// A file is a file in a package, or a package.
type file struct {
	name       string
	data       []byte
	executable bool
}
