package main

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// A platform is an operating system and an architecture, with their names in Go, npm and Python.
type platform struct {
	os, arch string // GOOS, GOARCH
	// nodeOS and nodeArch are its names in Node.js: process.platform and process.arch.
	nodeOS, nodeArch string
	// tags are those of its wheel. The program for Linux is linked statically, and runs with any libc. The version
	// of macOS is the oldest that Go supports.
	tags string
}

var platforms = []platform{
	{"linux", "amd64", "linux", "x64", "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64"},
	{"linux", "arm64", "linux", "arm64", "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64"},
	{"darwin", "amd64", "darwin", "x64", "macosx_12_0_x86_64"},
	{"darwin", "arm64", "darwin", "arm64", "macosx_12_0_arm64"},
	{"windows", "amd64", "win32", "x64", "win_amd64"},
	{"windows", "arm64", "win32", "arm64", "win_arm64"},
}

// program returns the name of the program on a platform.
func (p platform) program() string {
	if p.os == "windows" {
		return "holdfast.exe"
	}
	return "holdfast"
}

// A release has the programs of one version.
type release struct {
	version  string // without "v"
	license  []byte
	programs map[platform][]byte
}

// archive matches the names of archives from .goreleaser.yaml.
var archive = regexp.MustCompile(`^holdfast_(.+)_([a-z]+)_([a-z0-9]+)\.(?:tar\.gz|zip)$`)

// semver matches the versions that npm takes.
var semver = regexp.MustCompile(`^(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(?:-[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*)?$`)

// readRelease reads the archives in a directory, and checks their checksums.
func readRelease(dist string) (*release, error) {
	sums, err := checksums(filepath.Join(dist, "checksums.txt"))
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dist)
	if err != nil {
		return nil, err
	}
	r := &release{programs: make(map[platform][]byte)}
	for _, entry := range entries {
		m := archive.FindStringSubmatch(entry.Name())
		if m == nil {
			continue
		}
		i := slices.IndexFunc(platforms, func(p platform) bool { return p.os == m[2] && p.arch == m[3] })
		if i < 0 {
			return nil, fmt.Errorf("%s: the packages know no platform %s/%s: add it to deploy/pack/release.go", entry.Name(), m[2], m[3])
		}
		switch {
		case !semver.MatchString(m[1]):
			return nil, fmt.Errorf("%s: %q is no version as 1.2.3 or 1.2.3-rc.1", entry.Name(), m[1])
		case r.version != "" && r.version != m[1]:
			return nil, fmt.Errorf("%s has archives of versions %s and %s: remove the old ones", dist, r.version, m[1])
		}
		r.version = m[1]
		data, err := os.ReadFile(filepath.Join(dist, entry.Name()))
		if err != nil {
			return nil, err
		}
		if sum := sha256.Sum256(data); sums[entry.Name()] != hex.EncodeToString(sum[:]) {
			return nil, fmt.Errorf("%s is not the file that checksums.txt names: make the release again", entry.Name())
		}
		files, err := unpack(entry.Name(), data)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", entry.Name(), err)
		}
		p := platforms[i]
		program, license := files[p.program()], files["LICENSE"]
		if program == nil || license == nil {
			return nil, fmt.Errorf("%s has no %s or no LICENSE", entry.Name(), p.program())
		}
		r.programs[p], r.license = program, license
	}
	if len(r.programs) == 0 {
		return nil, fmt.Errorf("%s has no archive holdfast_VERSION_OS_ARCH.tar.gz: goreleaser release --clean makes them", dist)
	}
	return r, nil
}

// missing returns the platforms without a program.
func (r *release) missing() (all []string) {
	for _, p := range platforms {
		if r.programs[p] == nil {
			all = append(all, p.os+"/"+p.arch)
		}
	}
	return all
}

// checksums reads the SHA-256 sums of files, by their names.
func checksums(name string) (map[string]string, error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no %s: goreleaser release --clean makes it, with the archives", name)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	sums := make(map[string]string)
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if sum, file, ok := strings.Cut(lines.Text(), "  "); ok {
			sums[file] = sum
		}
	}
	return sums, lines.Err()
}

// unpack returns the files of an archive.
func unpack(name string, data []byte) (map[string][]byte, error) {
	files := make(map[string][]byte)
	if strings.HasSuffix(name, ".zip") {
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return nil, err
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				return nil, err
			}
			if files[f.Name], err = io.ReadAll(r); err != nil {
				return nil, err
			}
			_ = r.Close()
		}
		return files, nil
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	t := tar.NewReader(z)
	for {
		head, err := t.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		if files[head.Name], err = io.ReadAll(t); err != nil {
			return nil, err
		}
	}
}
