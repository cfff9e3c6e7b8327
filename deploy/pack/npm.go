package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"time"
)

//go:embed holdfast.js
var shim []byte

//go:embed README.md
var readme []byte

const summary = "Keeps MCP calls alive when connections are cut and servers restart"

// A manifest is a package.json. It has no scripts.
type manifest struct {
	Name            string            `json:"name"`
	Version         string            `json:"version"`
	Description     string            `json:"description"`
	License         string            `json:"license"`
	Keywords        []string          `json:"keywords,omitempty"`
	Bin             map[string]string `json:"bin,omitempty"`
	Engines         map[string]string `json:"engines,omitempty"`
	OS              []string          `json:"os,omitempty"`
	CPU             []string          `json:"cpu,omitempty"`
	PreferUnplugged bool              `json:"preferUnplugged,omitempty"` // Yarn keeps packages as archives, from which no program runs
	Optional        map[string]string `json:"optionalDependencies,omitempty"`
}

// npmName returns the name of the package with the program of a platform. The shim makes the name in the
// same way.
func (p platform) npmName() string { return "holdfast-" + p.nodeOS + "-" + p.nodeArch }

// npm returns the packages for npm.
func (r *release) npm() (packages []file, err error) {
	top := manifest{
		Name: "holdfast", Version: r.version, Description: summary, License: "Apache-2.0",
		Keywords: []string{"mcp", "model-context-protocol", "proxy", "gateway", "resumable"},
		Bin:      map[string]string{"holdfast": "bin/holdfast.js"},
		Engines:  map[string]string{"node": ">=18"},
		Optional: make(map[string]string),
	}
	for _, p := range platforms {
		program := r.programs[p]
		if program == nil {
			continue
		}
		top.Optional[p.npmName()] = r.version
		of, err := npmPackage(manifest{
			Name: p.npmName(), Version: r.version, License: "Apache-2.0", OS: []string{p.nodeOS}, CPU: []string{p.nodeArch}, PreferUnplugged: true,
			Description: "The program of the package holdfast for " + p.nodeOS + " " + p.nodeArch,
		}, file{"LICENSE", r.license, false}, file{"bin/" + p.program(), program, true})
		if err != nil {
			return nil, err
		}
		packages = append(packages, of)
	}
	main, err := npmPackage(top, file{"LICENSE", r.license, false}, file{"README.md", readme, false}, file{"bin/holdfast.js", shim, true})
	return append(packages, main), err
}

// npmTime is the time of all files in npm's packages, as in those that npm makes.
var npmTime = time.Date(1985, 10, 26, 8, 15, 0, 0, time.UTC)

func npmPackage(m manifest, files ...file) (file, error) {
	var about bytes.Buffer
	e := json.NewEncoder(&about)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(m); err != nil {
		return file{}, err
	}
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range append([]file{{"package.json", about.Bytes(), false}}, files...) {
		head := &tar.Header{Typeflag: tar.TypeReg, Name: "package/" + f.name, Size: int64(len(f.data)), Mode: 0o644, ModTime: npmTime, Format: tar.FormatUSTAR}
		if f.executable {
			head.Mode = 0o755
		}
		if err := t.WriteHeader(head); err != nil {
			return file{}, err
		}
		if _, err := t.Write(f.data); err != nil {
			return file{}, err
		}
	}
	if err := t.Close(); err != nil {
		return file{}, err
	}
	if err := z.Close(); err != nil {
		return file{}, err
	}
	return file{name: m.Name + "-" + m.Version + ".tgz", data: b.Bytes()}, nil
}
