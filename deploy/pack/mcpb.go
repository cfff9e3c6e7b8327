package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"debug/macho"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// A bundle is the manifest.json of an MCP bundle (MCPB), which desktop hosts install with a click
// (github.com/modelcontextprotocol/mcpb, MANIFEST.md, version 0.3).
type bundle struct {
	ManifestVersion string                   `json:"manifest_version"`
	Name            string                   `json:"name"`
	DisplayName     string                   `json:"display_name"`
	Version         string                   `json:"version"`
	Description     string                   `json:"description"`
	LongDescription string                   `json:"long_description"`
	Author          map[string]string        `json:"author"`
	License         string                   `json:"license"`
	Keywords        []string                 `json:"keywords"`
	Server          bundleServer             `json:"server"`
	ToolsGenerated  bool                     `json:"tools_generated"`
	UserConfig      map[string]bundleSetting `json:"user_config"`
	Compatibility   map[string][]string      `json:"compatibility"`
}

type bundleServer struct {
	Type       string        `json:"type"`
	EntryPoint string        `json:"entry_point"`
	Config     bundleCommand `json:"mcp_config"`
}

type bundleCommand struct {
	Command   string                   `json:"command"`
	Args      []string                 `json:"args,omitempty"`
	Platforms map[string]bundleCommand `json:"platform_overrides,omitempty"`
}

type bundleSetting struct {
	Type        string `json:"type"`
	Title       string `json:"title"`
	Description string `json:"description"`
	Required    bool   `json:"required"`
}

// bundled are the programs in the bundle, by the name of their platform there. A bundle cannot choose by processor: macOS
// has one program for both processors, and Windows on arm64 runs the program for amd64.
var bundled = []struct{ node, goos, arch, path string }{
	{"darwin", "darwin", "", "server/darwin/holdfast"},
	{"win32", "windows", "amd64", "server/win32/holdfast.exe"},
	{"linux", "linux", "amd64", "server/linux/holdfast"},
}

// mcpb returns the bundle for desktop hosts: "holdfast connect", with the URL of the server as its setting. It returns no
// file if the programs of all platforms are missing.
func (r *release) mcpb() ([]file, error) {
	m := bundle{
		ManifestVersion: "0.3", Name: "holdfast", DisplayName: "Holdfast", Version: r.version, Description: summary,
		LongDescription: "Connects to a remote MCP server. A call survives cut connections, a sleeping laptop and a restart of the server, and a login is done in the browser.",
		Author:          map[string]string{"name": "The Holdfast authors"}, License: "Apache-2.0",
		Keywords:       []string{"mcp", "remote", "resumable"},
		ToolsGenerated: true, // the tools are those of the server
		UserConfig: map[string]bundleSetting{
			"url": {Type: "string", Title: "URL of the server", Description: "As https://mcp.example.com/mcp", Required: true},
		},
	}
	args := []string{"connect", "${user_config.url}"}
	overrides := make(map[string]bundleCommand)
	files := []file{{}, {"LICENSE", r.license, false}}
	var platforms []string
	for _, b := range bundled {
		program, err := r.forBundle(b.goos, b.arch)
		if err != nil {
			return nil, err
		}
		if program == nil {
			continue
		}
		command := bundleCommand{Command: "${__dirname}/" + b.path, Args: args}
		if platforms == nil {
			m.Server = bundleServer{Type: "binary", EntryPoint: b.path, Config: command}
		}
		overrides[b.node] = command
		platforms = append(platforms, b.node)
		files = append(files, file{b.path, program, true})
	}
	if platforms == nil {
		return nil, nil
	}
	m.Server.Config.Platforms = overrides
	m.Compatibility = map[string][]string{"platforms": platforms}
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return nil, err
	}
	files[0] = file{"manifest.json", append(data, '\n'), false}
	var out bytes.Buffer
	z := zip.NewWriter(&out)
	z.RegisterCompressor(zip.Deflate, func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })
	for _, f := range files {
		head := &zip.FileHeader{Name: f.name, Method: zip.Deflate}
		head.SetMode(0o644)
		if f.executable {
			head.SetMode(0o755)
		}
		w, err := z.CreateHeader(head)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, err
		}
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return []file{{"holdfast-" + r.version + ".mcpb", out.Bytes(), false}}, nil
}

// forBundle returns the program of a platform; without an architecture, one for all architectures. It returns nil if the
// release lacks a part of the program.
func (r *release) forBundle(goos, arch string) ([]byte, error) {
	var all [][]byte
	for _, p := range platforms {
		if p.os != goos || arch != "" && p.arch != arch {
			continue
		}
		if r.programs[p] == nil {
			return nil, nil
		}
		all = append(all, r.programs[p])
	}
	if arch != "" {
		return all[0], nil
	}
	return universal(all)
}

// universal joins programs for several processors into one for macOS (mach-o/fat.h). Each part is unchanged, with its
// signature.
func universal(programs [][]byte) ([]byte, error) {
	const alignment = 14 // a power of two: the pages of arm64 have 16 KiB
	out := binary.BigEndian.AppendUint32(nil, macho.MagicFat)
	out = binary.BigEndian.AppendUint32(out, uint32(len(programs))) //nolint:gosec // there are two
	var body []byte
	at := 1 << alignment
	for _, p := range programs {
		f, err := macho.NewFile(bytes.NewReader(p))
		if err != nil {
			return nil, fmt.Errorf("a program for macOS: %w", err)
		}
		if len(p) >= 1<<31 {
			return nil, errors.New("a program for macOS is too large to be joined with another")
		}
		for _, v := range []uint32{uint32(f.Cpu), f.SubCpu, uint32(at + len(body)), uint32(len(p)), alignment} { //nolint:gosec // see above
			out = binary.BigEndian.AppendUint32(out, v)
		}
		body = append(body, p...)
		body = append(body, make([]byte, -len(body)&(1<<alignment-1))...)
	}
	out = append(out, make([]byte, at-len(out))...)
	return append(out, body...), nil
}
