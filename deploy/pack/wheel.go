package main

import (
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"regexp"
	"strings"
	"time"
)

// prerelease matches the suffix of versions of prereleases that have a form in Python.
var prerelease = regexp.MustCompile(`^(alpha|beta|rc)\.?(\d+)$`)

// pythonVersion returns a version in the form of Python (PEP 440). A version without such a form, such as a snapshot's,
// becomes one before the release.
func pythonVersion(version string) string {
	numbers, rest, ok := strings.Cut(version, "-")
	if !ok {
		return version
	}
	if m := prerelease.FindStringSubmatch(rest); m != nil {
		return numbers + map[string]string{"alpha": "a", "beta": "b", "rc": "rc"}[m[1]] + m[2]
	}
	return numbers + ".dev0+" + strings.ToLower(strings.NewReplacer("-", ".").Replace(rest))
}

// wheels returns the packages for Python. A wheel has the program as a script, which installers put beside Python's own
// scripts.
func (r *release) wheels() (all []file, err error) {
	for _, p := range platforms {
		if r.programs[p] == nil {
			continue
		}
		w, err := r.wheel(p)
		if err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

func (r *release) wheel(p platform) (file, error) {
	version := pythonVersion(r.version)
	about := fmt.Sprintf(`Metadata-Version: 2.1
Name: holdfast
Version: %s
Summary: %s
License: Apache-2.0
Keywords: mcp,model-context-protocol,proxy,gateway,resumable
Requires-Python: >=3.8
Description-Content-Type: text/markdown

%s`, version, summary, readme)
	kind := "Wheel-Version: 1.0\nGenerator: holdfast\nRoot-Is-Purelib: false\n"
	for tag := range strings.SplitSeq(p.tags, ".") {
		kind += "Tag: py3-none-" + tag + "\n"
	}
	info := "holdfast-" + version + ".dist-info/"
	files := []file{
		{"holdfast-" + version + ".data/scripts/" + p.program(), r.programs[p], true},
		{info + "LICENSE", r.license, false},
		{info + "METADATA", []byte(about), false},
		{info + "WHEEL", []byte(kind), false},
	}
	var record strings.Builder
	for _, f := range files {
		sum := sha256.Sum256(f.data)
		fmt.Fprintf(&record, "%s,sha256=%s,%d\n", f.name, base64.RawURLEncoding.EncodeToString(sum[:]), len(f.data))
	}
	fmt.Fprintf(&record, "%sRECORD,,\n", info)
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, f := range append(files, file{info + "RECORD", []byte(record.String()), false}) {
		head := &zip.FileHeader{Name: f.name, Method: zip.Deflate, Modified: time.Date(1980, 1, 1, 0, 0, 0, 0, time.UTC)}
		head.SetMode(0o644)
		if f.executable {
			head.SetMode(0o755)
		}
		w, err := z.CreateHeader(head)
		if err != nil {
			return file{}, err
		}
		if _, err := w.Write(f.data); err != nil {
			return file{}, err
		}
	}
	if err := z.Close(); err != nil {
		return file{}, err
	}
	return file{name: "holdfast-" + version + "-py3-none-" + p.tags + ".whl", data: b.Bytes()}, nil
}
